// Wrong arguments, cancellation, failures in the middle, and tools.

#include <cmath>
#include <cstring>
#include <memory>

#include "check.h"
#include "client.h"
#include "tests.h"

namespace {

constexpr size_t kMaxLen = 64;

bool last_error_is(const char* code) { return std::strncmp(specc_last_error(), code, std::strlen(code)) == 0; }

#define CHECK_FAILS(call, expected_result, code)         \
  do {                                                   \
    CHECK_EQ(call, expected_result);                     \
    CHECK_NOTE(last_error_is(code), specc_last_error()); \
  } while (0)

void wrong_arguments(const Artifact& artifact, const Artifact& tap) {
  CHECK_EQ(specc_interface_version(), SPECC_INTERFACE_VERSION);
  CHECK(std::strlen(specc_version()) > 0);
  CHECK(std::strstr(specc_artifact_manifest(artifact.get()), "schema_version") != nullptr);
  specc_artifact* none = nullptr;
  CHECK_FAILS(specc_artifact_load(nullptr, 1, &none), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_artifact_load("absent", 1, &none), SPECC_ARTIFACT, "SPECC-E0501");
  CHECK_FAILS(specc_artifact_load("absent", -1, &none), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_open(nullptr, nullptr), SPECC_INVALID, "SPECC-E0601");
  specc_artifact_free(nullptr);
  specc_session_close(nullptr);
  specc_session_cancel(nullptr);

  Client client(artifact);
  int64_t token = 0;
  CHECK_FAILS(specc_session_next(client.get(), &token), SPECC_INVALID, "SPECC-E0607");
  size_t count = 7;
  CHECK_FAILS(specc_session_generate(client.get(), &token, 1, &count), SPECC_INVALID, "SPECC-E0607");
  CHECK_EQ(count, 0u);
  CHECK_FAILS(specc_session_generate(client.get(), nullptr, 1, &count), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_generate(client.get(), &token, 1, nullptr), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(client.append({}), SPECC_INVALID, "SPECC-E0607");
  CHECK_FAILS(client.append({-1}), SPECC_INVALID, "SPECC-E0602");
  CHECK_FAILS(client.append({1, tiny::kVocab}), SPECC_INVALID, "SPECC-E0602");
  CHECK_FAILS(client.append(Tokens(kMaxLen + 1, 1)), SPECC_INVALID, "SPECC-E0603");
  CHECK_FAILS(specc_session_append(client.get(), nullptr, 3), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_append(client.get(), &token, SIZE_MAX), SPECC_INVALID, "SPECC-E0603");
  CHECK_FAILS(specc_session_rewind(client.get(), 1), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_set_int(client.get(), "max_token", 1), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_set_int(client.get(), "max_tokens", -1), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_set_int(client.get(), "ignore_eos", 2), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_set_int(client.get(), "num_speculative_tokens", 3), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_set_int(client.get(), "draft_depth", 2), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_set_float(client.get(), "temperature", -0.1), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_set_float(client.get(), "temperature", NAN), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_set_float(client.get(), "top_q", 0.5), SPECC_INVALID, "SPECC-E0601");
  double value = 0;
  CHECK_FAILS(specc_session_stat(client.get(), "speed", &value), SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_stat_position(client.get(), 4, &value, &value), SPECC_INVALID, "SPECC-E0601");
  CHECK_EQ(specc_session_stat_k(client.get(), 3, &value, &value, &value), SPECC_OK);
  CHECK_FAILS(specc_session_stat_k(client.get(), 4, &value, &value, &value), SPECC_INVALID, "SPECC-E0601");

  Client inside(tap);
  const auto drafter = [](void*, const int64_t*, size_t, size_t, int64_t*) { return size_t{0}; };
  CHECK_EQ(specc_session_set_drafter(inside.get(), drafter, nullptr), SPECC_OK);  // beside that in its graph
  CHECK_EQ(specc_session_set_drafter(inside.get(), nullptr, nullptr), SPECC_OK);
}

void failures_leave_the_text_alone(const Artifact& artifact) {
  Client client(artifact);
  Settings settings;
  settings.k = 4;
  client.set(settings);
  const Tokens prompt = prompt_of(6);
  CHECK(client.append(prompt) == SPECC_OK);
  const Tokens heard = client.generate(5);
  CHECK_FAILS(client.append({1, 2, 1000}), SPECC_INVALID, "SPECC-E0602");

  client.set_drafter([](const Tokens&, size_t k) { return Tokens(k + 1, 1); });
  CHECK_EQ(client.append({}), SPECC_OK);
  client.generate();
  CHECK_FAILS(client.result, SPECC_RUNTIME, "SPECC-E0606");
  client.set_drafter([](const Tokens&, size_t k) { return Tokens(k, 1 << 20); });
  client.generate();
  CHECK_FAILS(client.result, SPECC_RUNTIME, "SPECC-E0606");
  specc_session_set_drafter(client.get(), nullptr, nullptr);

  CHECK(client.append({tiny::kNanToken}) == SPECC_OK);
  CHECK(client.generate().empty());
  CHECK_FAILS(client.result, SPECC_RUNTIME, "SPECC-E0604");
  client.rewind(prompt.size() + heard.size());
  CHECK(client.append({}) == SPECC_OK);  // go on
  CHECK(client.generate() == plain(joined(prompt, heard), settings, kMaxLen).tokens);
  CHECK_EQ(client.finish(), "length");
  int64_t token = 0;
  CHECK_EQ(specc_session_next(client.get(), &token), SPECC_DONE);  // and stays done
}

void cancellation(const Artifact& artifact) {
  Client client(artifact);
  Settings settings;
  settings.k = 2;
  client.set(settings);
  specc_session_cancel(client.get());
  CHECK_EQ(client.append(prompt_of(20)), SPECC_CANCELLED);  // nothing is appended
  int64_t token = 0;
  CHECK_EQ(specc_session_next(client.get(), &token), SPECC_INVALID);
  CHECK_EQ(client.append(prompt_of(20)), SPECC_OK);
  Tokens tokens;
  for (size_t i = 0; i < settings.max_tokens; ++i) {
    if (i % 2 == 0) {
      specc_session_cancel(client.get());
      CHECK_EQ(specc_session_next(client.get(), &token), SPECC_CANCELLED);
    }
    tokens = joined(tokens, client.generate(1));
  }
  CHECK(tokens == plain(prompt_of(20), settings, kMaxLen).tokens);
  // In the middle of a round: the round is finished, the next call reports it.
  client.rewind(20);
  int calls = 0;
  client.set_drafter([&](const Tokens&, size_t) {
    if (++calls % 2 == 0) specc_session_cancel(client.get());
    return Tokens{};
  });
  tokens.clear();
  for (int i = 0; i < 100 && tokens.size() < settings.max_tokens; ++i) tokens = joined(tokens, client.generate());
  CHECK(tokens == plain(prompt_of(20), settings, kMaxLen).tokens);
}

void finish_reason_comes_with_the_last_token(const Artifact& artifact) {
  Client client(artifact);
  Settings settings;
  settings.k = 4;
  settings.max_tokens = 7;
  client.set(settings);
  client.append(prompt_of(4));
  for (size_t i = 0; i < 7; ++i) {
    CHECK_EQ(client.finish(), "");
    CHECK_EQ(client.generate(1).size(), 1u);
  }
  CHECK_EQ(client.finish(), "length");
  client.append({5});
  CHECK_EQ(client.finish(), "");
}

void tools(const Artifact& artifact) {
  Client client(artifact);
  Settings settings;
  client.set(settings);
  const Tokens prompt = prompt_of(5), next = plain(prompt, settings, kMaxLen).tokens;
  CHECK(client.append(prompt) == SPECC_OK);
  const Tokens tokens = {prompt.back(), next[0], next[1]}, positions = {4, 5, 6};
  const int64_t* inputs[] = {tokens.data(), positions.data()};
  size_t counts[] = {3, 3}, bytes = 0;
  float logits[3 * tiny::kVocab];
  CHECK_EQ(specc_session_run(client.get(), "verify_2", inputs, counts, 2, nullptr, 0, &bytes), SPECC_OK);
  CHECK_EQ(bytes, sizeof logits);
  CHECK_FAILS(specc_session_run(client.get(), "verify_2", inputs, counts, 2, logits, 8, &bytes), SPECC_INVALID,
              "SPECC-E0601");
  CHECK_EQ(specc_session_run(client.get(), "verify_2", inputs, counts, 2, logits, sizeof logits, &bytes), SPECC_OK);
  for (int64_t r = 0; r < 3; ++r) {
    CHECK_EQ(tiny::choose(logits + r * tiny::kVocab, tiny::kValid, 0, 0, 0), next[static_cast<size_t>(r)]);
  }
  // A tool that writes over the text's own state does not change the text.
  const Tokens junk = {9, 9, 9}, early = {1, 2, 3};
  const int64_t* overwrite[] = {junk.data(), early.data(), early.data()};
  const size_t three[] = {3, 3, 3};
  CHECK_EQ(specc_session_run(client.get(), "prefill", overwrite, three, 3, nullptr, 0, nullptr), SPECC_OK);
  CHECK(client.generate() == next);

  const Tokens far = {62, 63, 64};
  const int64_t* outside[] = {tokens.data(), far.data()};
  CHECK_FAILS(specc_session_run(client.get(), "verify_2", outside, counts, 2, logits, sizeof logits, &bytes),
              SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_run(client.get(), "verify_3", inputs, counts, 2, logits, sizeof logits, &bytes),
              SPECC_INVALID, "SPECC-E0601");
  CHECK_FAILS(specc_session_run(client.get(), "verify_2", inputs, counts, 1, logits, sizeof logits, &bytes),
              SPECC_INVALID, "SPECC-E0601");
  counts[1] = 2;
  CHECK_FAILS(specc_session_run(client.get(), "verify_2", inputs, counts, 2, logits, sizeof logits, &bytes),
              SPECC_INVALID, "SPECC-E0601");
}

// What fails, and what only looks, does not set a finished session going again.
void finished_stays_finished(const Artifact& artifact) {
  Client client(artifact);  // token 3 is its EOS
  Settings settings;
  client.set(settings);
  const Tokens prompt = prompt_of(4, 1);
  CHECK(client.append(prompt) == SPECC_OK);
  CHECK(client.generate() == plain(prompt, settings, kMaxLen, {3}).tokens);
  CHECK_EQ(client.finish(), "stop");
  CHECK_EQ(client.append({-5}), SPECC_INVALID);
  specc_session_cancel(client.get());
  CHECK_EQ(client.append(prompt_of(9)), SPECC_CANCELLED);
  const Tokens tokens = {1}, positions = {0};
  const int64_t* inputs[] = {tokens.data(), positions.data()};
  const size_t counts[] = {1, 1};
  CHECK_EQ(specc_session_run(client.get(), "verify_0", inputs, counts, 2, nullptr, 0, nullptr), SPECC_OK);
  CHECK(client.generate().empty());
  CHECK_EQ(client.result, SPECC_DONE);
  CHECK_EQ(client.finish(), "stop");
}

}  // namespace

void edges_test(const std::string& folder) {
  const Artifact tap(folder + "/tap");
  auto artifact = std::make_unique<Artifact>(folder + "/ngram");
  wrong_arguments(*artifact, tap);
  failures_leave_the_text_alone(*artifact);
  cancellation(*artifact);
  finish_reason_comes_with_the_last_token(*artifact);
  tools(*artifact);
  finished_stays_finished(Artifact(folder + "/eos"));
  Client outliving(*artifact);
  artifact.reset();  // a session keeps what it needs
  CHECK(outliving.append({1, 2}) == SPECC_OK);
  CHECK_EQ(outliving.generate(1).size(), 1u);
}
