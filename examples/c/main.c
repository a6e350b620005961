/* Decodes with a specc artifact.
 *
 *   specc_example ARTIFACT "prompt" [max_tokens]      streams text
 *   specc_example ARTIFACT --ids 1,2,3 [max_tokens]   prints token ids, one a line; needs no tokenizer
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "specc.h"

enum { DEFAULT_MAX_TOKENS = 128 };

typedef struct ids {
  int64_t* data;
  size_t count;
} ids;

static int failed(void) {
  fprintf(stderr, "%s\n", specc_last_error());
  return 1;
}

static int usage(void) {
  fputs(
      "usage: specc_example ARTIFACT \"prompt\" [max_tokens]\n"
      "       specc_example ARTIFACT --ids 1,2,3 [max_tokens]\n",
      stderr);
  return 2;
}

/* Whether `text` is a whole number >= 0 and nothing else follows it but `end`. */
static int read_number(const char** text, char end, int64_t* number) {
  char* rest = NULL;
  errno = 0;
  const long long value = strtoll(*text, &rest, 10);
  if (rest == *text || errno != 0 || value < 0 || (*rest != end && *rest != '\0')) return 0;
  *number = value;
  *text = *rest == '\0' ? rest : rest + 1;
  return 1;
}

static int read_ids(const char* text, ids* out) {
  out->count = 0;
  out->data = malloc((strlen(text) / 2 + 1) * sizeof *out->data); /* an id takes a digit and a comma */
  if (out->data == NULL) return 0;
  while (*text != '\0') {
    if (!read_number(&text, ',', &out->data[out->count++])) return 0;
  }
  return 1;
}

/* The two-call pattern: ask for the size, then for the ids. */
static int tokenize(const specc_artifact* artifact, const char* text, ids* out) {
  const size_t bytes = strlen(text);
  if (specc_tokenize(artifact, text, bytes, 1, 1, NULL, 0, &out->count) != SPECC_OK) return 0;
  out->data = malloc((out->count + 1) * sizeof *out->data);
  if (out->data == NULL) return 0;
  return specc_tokenize(artifact, text, bytes, 1, 1, out->data, out->count, &out->count) == SPECC_OK;
}

/* How much of `text` is whole UTF-8 characters: the last one may still wait for its other half. A half character
 * at the end appears as U+FFFD (EF BF BD). */
static size_t whole_characters(const char* text, size_t bytes) {
  while (bytes >= 3 && memcmp(text + bytes - 3, "\xEF\xBF\xBD", 3) == 0) bytes -= 3;
  return bytes;
}

/* Prints what the new tokens add to the text. Decodes all of them each time, since a token's text depends on the tokens
 * before it; `printed` bytes are out already. */
static int print_text(const specc_artifact* artifact, const ids* tokens, size_t* printed, int last) {
  size_t bytes = 0, end;
  char* text;
  if (specc_detokenize(artifact, tokens->data, tokens->count, 1, NULL, 0, &bytes) != SPECC_OK) return 0;
  text = malloc(bytes + 1);
  if (text == NULL) return 0;
  if (specc_detokenize(artifact, tokens->data, tokens->count, 1, text, bytes, &bytes) != SPECC_OK) {
    free(text);
    return 0;
  }
  end = last ? bytes : whole_characters(text, bytes);
  if (end > *printed) {
    fwrite(text + *printed, 1, end - *printed, stdout);
    fflush(stdout);
    *printed = end;
  }
  free(text);
  return 1;
}

static void print_statistics(const specc_session* session) {
  double tokens = 0, seconds = 0, rounds = 0;
  specc_session_stat(session, "new_tokens", &tokens);
  specc_session_stat(session, "decode_s", &seconds);
  specc_session_stat(session, "rounds", &rounds);
  if (seconds > 0) {
    fprintf(stderr, "[%s] %.0f tokens in %.0f rounds, %.1f tokens/s\n", specc_session_finish_reason(session), tokens,
            rounds, tokens / seconds);
  }
}

static int generate(const specc_artifact* artifact, specc_session* session, const ids* prompt, int64_t max_tokens,
                    int as_text) {
  ids tokens = {NULL, 0};
  size_t capacity = 0, printed = 0;
  int64_t token = 0;
  specc_result result;
  int status = 1;

  if (specc_session_set_int(session, "max_tokens", max_tokens) != SPECC_OK) return failed();
  if (specc_session_append(session, prompt->data, prompt->count) != SPECC_OK) return failed();
  while ((result = specc_session_next(session, &token)) == SPECC_OK) {
    if (!as_text) {
      printf("%lld\n", (long long)token);
      continue;
    }
    if (tokens.count == capacity) {
      int64_t* larger = realloc(tokens.data, (capacity = 2 * capacity + 64) * sizeof *larger);
      if (larger == NULL) goto end;
      tokens.data = larger;
    }
    tokens.data[tokens.count++] = token;
    if (!print_text(artifact, &tokens, &printed, 0)) goto failure;
  }
  if (result != SPECC_DONE) goto failure;
  if (as_text) {
    if (tokens.count > 0 && !print_text(artifact, &tokens, &printed, 1)) goto failure;
    putchar('\n');
  }
  print_statistics(session);
  status = 0;
  goto end;

failure:
  failed();
end:
  free(tokens.data);
  return status;
}

int main(int argc, char** argv) {
  specc_artifact* artifact = NULL;
  specc_session* session = NULL;
  ids prompt = {NULL, 0};
  int64_t max_tokens = DEFAULT_MAX_TOKENS;
  int status = 1;
  const int by_ids = argc > 2 && strcmp(argv[2], "--ids") == 0;
  const int prompt_at = by_ids ? 3 : 2;
  const char* limit = argc > prompt_at + 1 ? argv[prompt_at + 1] : NULL;

  if (argc <= prompt_at || argc > prompt_at + 2) return usage();
  if (limit != NULL && !read_number(&limit, '\0', &max_tokens)) return usage();
  if (specc_interface_version() != SPECC_INTERFACE_VERSION) {
    fputs("this program was built for another version of libspecc\n", stderr);
    return 1;
  }
  if (by_ids && !read_ids(argv[3], &prompt)) {
    free(prompt.data);
    return usage();
  }
  if (specc_artifact_load(argv[1], 0, &artifact) != SPECC_OK || specc_session_open(artifact, &session) != SPECC_OK ||
      (!by_ids && !tokenize(artifact, argv[2], &prompt))) {
    failed();
  } else {
    status = generate(artifact, session, &prompt, max_tokens, !by_ids);
  }
  free(prompt.data);
  specc_session_close(session);
  specc_artifact_free(artifact);
  return status;
}
