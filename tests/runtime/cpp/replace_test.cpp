// A recompiled artifact in the place of one that is still in use.

#include <chrono>
#include <filesystem>

#include "check.h"
#include "client.h"
#include "tests.h"

namespace {

Tokens text_of(const Artifact& artifact) {
  Client client(artifact);
  client.append(prompt_of(5));
  return client.generate();
}

}  // namespace

void replace_test(const std::string& folder) {
  namespace fs = std::filesystem;
  Settings settings;
  settings.max_tokens = 59;  // to the end of the context
  const Tokens expected = plain(prompt_of(5), settings, 64).tokens;
  const Artifact before(folder, 1);
  CHECK(text_of(before) == expected);

  fs::rename(folder + "/next.so", folder + "/model.so");
  const Artifact after(folder, 2);
  CHECK(text_of(after) != expected);
  CHECK(text_of(before) == expected);  // side by side
  CHECK_EQ(specc_artifact_threads(before.get()), 1);
  CHECK_EQ(specc_artifact_threads(after.get()), 2);
  CHECK_EQ(specc_artifact_threads(nullptr), 0);
  {
    const Artifact again(folder, 1);
    CHECK_EQ(specc_artifact_threads(again.get()), 2);  // shared
    CHECK(text_of(again) == text_of(after));
  }

  // Overwritten rather than replaced: what is mapped is no longer what was loaded.
  const fs::path library = folder + "/model.so";
  fs::last_write_time(library, fs::last_write_time(library) + std::chrono::seconds(1));
  specc_artifact* refused = nullptr;
  CHECK_EQ(specc_artifact_load(folder.c_str(), 1, &refused), SPECC_ARTIFACT);
  CHECK(std::string(specc_last_error()).find("SPECC-E0506") == 0);
}
