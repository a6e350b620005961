// One file, and nothing beside it: code, weights and tokenizer of a model are parts of this program.
//
//   specc_single "prompt" [max_tokens]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "specc.h"

extern "C" {
const struct specc_model* specc_model_entry(void);  // of libmodel.a
extern const char specc_model_build[];
extern const char manifest_begin[], manifest_end[], weights_begin[], weights_end[], tokenizer_begin[], tokenizer_end[];
}

namespace {

struct File {
  const char* name;
  const char *begin, *end;
};

const File kFiles[] = {{"manifest.json", manifest_begin, manifest_end},
                       {"weights.safetensors", weights_begin, weights_end},
                       {"tokenizer.bin", tokenizer_begin, tokenizer_end}};

int32_t find(void*, const char* name, const void** data, size_t* size) {
  for (const File& file : kFiles) {
    if (std::strcmp(file.name, name) != 0) continue;
    *data = file.begin;
    *size = static_cast<size_t>(file.end - file.begin);
    return 1;
  }
  return 0;
}

struct Free {
  void operator()(specc_artifact* artifact) const { specc_artifact_free(artifact); }
  void operator()(specc_session* session) const { specc_session_close(session); }
};

void require(specc_result result) {
  if (result == SPECC_OK) return;
  std::fprintf(stderr, "%s\n", specc_last_error());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: specc_single \"prompt\" [max_tokens]\n", stderr);
    return 2;
  }
  const specc_source source{sizeof(specc_source), find, nullptr, specc_model_entry, specc_model_build};
  specc_artifact* loaded = nullptr;
  require(specc_artifact_load_from(&source, 0, &loaded));
  const std::unique_ptr<specc_artifact, Free> artifact(loaded);
  specc_session* opened = nullptr;
  require(specc_session_open(artifact.get(), &opened));
  const std::unique_ptr<specc_session, Free> session(opened);

  size_t count = 0;
  require(specc_tokenize(artifact.get(), argv[1], std::strlen(argv[1]), 1, 1, nullptr, 0, &count));
  std::vector<int64_t> ids(count);
  require(specc_tokenize(artifact.get(), argv[1], std::strlen(argv[1]), 1, 1, ids.data(), count, &count));
  require(specc_session_set_int(session.get(), "max_tokens", argc > 2 ? std::atoll(argv[2]) : 64));
  require(specc_session_append(session.get(), ids.data(), count));
  ids.clear();
  int64_t token = 0;
  specc_result result;
  while ((result = specc_session_next(session.get(), &token)) == SPECC_OK) ids.push_back(token);
  if (result != SPECC_DONE) require(result);

  size_t bytes = 0;
  require(specc_detokenize(artifact.get(), ids.data(), ids.size(), 1, nullptr, 0, &bytes));
  std::string text(bytes, '\0');
  require(specc_detokenize(artifact.get(), ids.data(), ids.size(), 1, &text[0], bytes, &bytes));
  std::puts(text.c_str());
}
