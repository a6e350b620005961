/* play ARTIFACT K TEMPERATURE MAX_TOKENS ID...: tokens, one a line, then how many drafts were accepted. */
#include <stdio.h>
#include <stdlib.h>

#include "specc.h"

static int failed(void) {
  fprintf(stderr, "%s\n", specc_last_error());
  return 1;
}

int main(int argc, char** argv) {
  specc_artifact* artifact;
  specc_session* session;
  double accepted = 0;
  if (argc < 6) return 2;
  if (specc_artifact_load(argv[1], 2, &artifact) != SPECC_OK) return failed();
  if (specc_session_open(artifact, &session) != SPECC_OK) return failed();
  if (specc_session_set_int(session, "num_speculative_tokens", atoll(argv[2])) != SPECC_OK) return failed();
  if (specc_session_set_float(session, "temperature", atof(argv[3])) != SPECC_OK) return failed();
  if (specc_session_set_int(session, "seed", 5) != SPECC_OK) return failed();
  if (specc_session_set_int(session, "max_tokens", atoll(argv[4])) != SPECC_OK) return failed();
  if (specc_session_set_int(session, "ignore_eos", 1) != SPECC_OK) return failed();
  for (int i = 5; i < argc; i++) {
    const int64_t id = atoll(argv[i]);
    if (specc_session_append(session, &id, 1) != SPECC_OK) return failed();
  }
  for (;;) {
    int64_t token;
    const specc_result result = specc_session_next(session, &token);
    if (result == SPECC_DONE) break;
    if (result != SPECC_OK) return failed();
    printf("%lld\n", (long long)token);
  }
  specc_session_stat(session, "accepted_tokens", &accepted);
  printf("%.0f\n", accepted);
  specc_session_close(session);
  specc_artifact_free(artifact);
  return 0;
}
