// core_tests NAME [FOLDER [ROUNDS]]

#include <iostream>
#include <string>

#include "check.h"
#include "specc.h"
#include "tests.h"

// For damaged artifacts: loads, opens a session, makes one round; prints what failed.
int load_and_report(const std::string& path) {
  specc_artifact* artifact = nullptr;
  specc_session* session = nullptr;
  const int64_t prompt[] = {1, 2, 3};
  int64_t token = 0;
  const bool right = specc_artifact_load(path.c_str(), 1, &artifact) == SPECC_OK &&
                     specc_session_open(artifact, &session) == SPECC_OK &&
                     specc_session_append(session, prompt, 3) == SPECC_OK &&
                     specc_session_next(session, &token) == SPECC_OK;
  std::cout << (right ? "ok" : specc_last_error()) << "\n";
  specc_session_close(session);
  specc_artifact_free(artifact);
  return 0;
}

int main(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "", folder = argc > 2 ? argv[2] : ".";
  if (name == "load") return load_and_report(folder);
  if (name == "json") json_test();
  if (name == "commit") commit_test();
  if (name == "drafters") drafters_test();
  if (name == "controller") controller_test();
  if (name == "sampling") sampling_test();
  if (name == "pool") pool_test(folder);
  if (name == "files") files_test(folder);
  if (name == "session") session_test(folder);
  if (name == "drawn") drawn_test(folder);
  if (name == "pieces") pieces_test(folder);
  if (name == "costs") costs_test(folder);
  if (name == "policy") policy_test(folder);
  if (name == "arena") arena_test(folder);
  if (name == "batch") batch_test(folder);
  if (name == "rounds" && argc > 3) rounds_test(folder, std::stoul(argv[3]));
  if (name == "edges") edges_test(folder);
  if (name == "replace") replace_test(folder);
  std::cout << name << ": " << failures << " failures\n";
  return failures == 0 ? 0 : 1;
}
