// Rules for how much is drafted: what they choose, and that the tokens are the same with any.

#include "../../../runtime/cpp/core/engine/length_policy.h"

#include <memory>

#include "../../../runtime/cpp/core/error.h"
#include "check.h"
#include "client.h"
#include "tests.h"

using specc::LengthPolicy;
using specc::Texts;
using specc::Window;

namespace {

constexpr size_t kMaxLen = 64;

size_t most(const char* name, size_t longest, LengthPolicy::Facts facts) {
  return LengthPolicy::parse(name).most(longest, facts);
}

void names() {
  for (const char* name : {"adaptive", "prompt-length", "aimd", "batch", "batch:1", "batch:64", "priority"}) {
    LengthPolicy::parse(name);
  }
  for (const char* name : {"", "tcp", "batch:", "batch:0", "batch:-1", "batch:2x", "aimd:2", "Adaptive", ":", "batch:9 "}) {
    bool refused = false;
    try {
      LengthPolicy::parse(name);
    } catch (const specc::Error& error) {
      refused = error.code() == specc::Code::Option;
    }
    CHECK_NOTE(refused, name);
  }
}

void numbers() {
  // The table of the documents: under 32 tokens 2, over 2,048 tokens 8.
  for (const auto& [prompt, drafts] : std::vector<std::pair<size_t, size_t>>{
           {1, 2}, {31, 2}, {32, 5}, {2048, 5}, {2049, 8}, {100000, 8}}) {
    CHECK(most("prompt-length", 16, {prompt, 1, {}, 0}) == drafts);
    CHECK(most("prompt-length", 4, {prompt, 1, {}, 0}) == std::min<size_t>(drafts, 4));
  }
  CHECK(most("batch:2", 8, {5, 1, {2, 1}, 0}) == 8);
  CHECK(most("batch:2", 8, {5, 1, {3, 1}, 0}) == 0);
  CHECK(most("batch", 8, {5, 1, {16, 1}, 0}) == 8);
  CHECK(most("batch", 8, {5, 1, {17, 1}, 0}) == 0);
  CHECK(most("priority", 8, {5, 4, {3, 4}, 0}) == 8);
  CHECK(most("priority", 8, {5, 2, {3, 4}, 0}) == 4);
  CHECK(most("priority", 8, {5, 0.1, {3, 4}, 0}) == 0);
  CHECK(most("priority", 8, {5, 0.1, {1, 0.1}, 0}) == 8);
  CHECK(most("aimd", 8, {5, 1, {}, 3}) == 3);
  CHECK(most("adaptive", 8, {5, 1, {99, 99}, 1}) == 8);
}

// More by one, less by half, as Jacobson's congestion window.
void window() {
  Window window;
  for (const size_t expected : {3, 4, 5, 6, 6}) {
    window.observe(window.drafts(), window.drafts(), 6);
    CHECK(window.drafts() == expected);
  }
  for (const size_t expected : {3, 1, 1}) {
    window.observe(window.drafts(), window.drafts() - 1, 6);
    CHECK(window.drafts() == expected);
  }
  window.observe(0, 0, 6);  // a round without drafts, as no compiled length is that short
  CHECK(window.drafts() == 2);
}

void members() {
  Texts texts;
  CHECK(texts.others().count == 0);
  texts.join(1);
  texts.join(4);
  texts.join(1);
  CHECK(texts.others().count == 3 && texts.others().heaviest == 4);
  texts.leave(4);
  CHECK(texts.others().count == 2 && texts.others().heaviest == 1);
}

void policy(Client& client, const char* name, double weight = 1) {
  CHECK(specc_session_set_text(client.get(), "length_policy", name) == SPECC_OK);
  CHECK(specc_session_set_float(client.get(), "draft_weight", weight) == SPECC_OK);
}

// Against decoding by the model itself, with every drafter, policy and temperature, as neighbours come and go.
void the_text_is_the_same(const std::string& folder) {
  for (const std::string kind : {"ngram", "suffix", "tap", "model", "pairs", "drawn"}) {
    const Artifact artifact(folder + "/" + kind);
    for (const char* name : {"prompt-length", "aimd", "batch:1", "priority"}) {
      for (size_t length = 1; length <= 36; length += 5) {
        Client client(artifact), neighbour(artifact);
        Settings settings;
        settings.temperature = length % 2 == 0 ? 3 : 0;
        const Plain expected = plain(prompt_of(length), settings, kMaxLen);
        client.set(settings);
        policy(client, name, 0.5);
        policy(neighbour, name);
        CHECK(client.append(prompt_of(length)) == SPECC_OK);
        Tokens got = client.generate(5);
        CHECK(neighbour.append(prompt_of(3)) == SPECC_OK);
        for (const int64_t token : client.generate(5)) got.push_back(token);
        neighbour.generate();
        for (const int64_t token : client.generate()) got.push_back(token);
        CHECK_NOTE(got == expected.tokens, kind + " " + name + " " + std::to_string(length));
      }
    }
  }
}

// Drafts of 0, 1, 2 or 4 that are always right, so that what is played is what was chosen.
double played(Client& client, const Tokens& prompt, size_t tokens) {
  Settings settings;
  client.set_drafter([settings](const Tokens& committed, size_t k) {
    Settings ahead = settings;
    ahead.max_tokens = k;
    return plain(committed, ahead, kMaxLen + 100).tokens;
  });
  client.rewind(0);
  CHECK(client.append(prompt) == SPECC_OK);
  client.generate(tokens);
  return client.stat("k_current");
}

void what_is_played(const std::string& folder) {
  const Artifact artifact(folder + "/ngram");
  Client client(artifact), other(artifact);
  policy(client, "prompt-length");
  CHECK(played(client, prompt_of(31), 1) == 2);
  CHECK(played(client, prompt_of(32), 1) == 4);  // 5, of which there is none
  policy(client, "aimd");
  CHECK(played(client, prompt_of(5), 1) == 2);
  CHECK(played(client, prompt_of(5), 4) == 2);  // 3, of which there is none
  CHECK(played(client, prompt_of(5), 7) == 4);

  // A fixed K under a limit; the neighbour is in the making from its append until it ends, or is taken back.
  CHECK(specc_session_set_int(client.get(), "num_speculative_tokens", 4) == SPECC_OK);
  policy(client, "batch:1");
  CHECK(played(client, prompt_of(5), 1) == 4);
  CHECK(other.append(prompt_of(3)) == SPECC_OK);
  CHECK(played(client, prompt_of(5), 1) == 0);
  other.generate();
  CHECK(played(client, prompt_of(5), 1) == 4);
  other.rewind(2);
  CHECK(other.append({1}) == SPECC_OK);
  CHECK(played(client, prompt_of(5), 1) == 0);
  other.rewind(0);
  CHECK(played(client, prompt_of(5), 1) == 4);

  policy(other, "priority", 2);
  CHECK(other.append(prompt_of(3)) == SPECC_OK);
  policy(client, "priority", 1);
  CHECK(played(client, prompt_of(5), 1) == 2);
  policy(client, "priority", 8);
  CHECK(played(client, prompt_of(5), 1) == 4);
  policy(client, "priority", 0.1);
  CHECK(played(client, prompt_of(5), 1) == 0);
  {
    Client third(artifact);
    policy(third, "priority", 100);
    CHECK(third.append(prompt_of(3)) == SPECC_OK);
    other.rewind(0);
    CHECK(played(client, prompt_of(5), 1) == 0);
  }
  CHECK(played(client, prompt_of(5), 1) == 4);  // a session that was closed makes no text
}

void refusals(const std::string& folder) {
  const Artifact artifact(folder + "/ngram");
  Client client(artifact);
  CHECK(specc_session_set_text(client.get(), "length_policy", "fast") == SPECC_INVALID);
  CHECK(specc_session_set_float(client.get(), "draft_weight", 0) == SPECC_INVALID);
  for (const char* name : {"prompt-length", "aimd"}) {
    policy(client, name);
    CHECK(specc_session_set_int(client.get(), "num_speculative_tokens", 2) == SPECC_OK);
    CHECK(client.append({1, 2}) == SPECC_INVALID);
    CHECK(specc_session_set_int(client.get(), "num_speculative_tokens", -1) == SPECC_OK);
    CHECK(client.append({1, 2}) == SPECC_OK);
    client.rewind(0);
  }
}

// One call of a compiled function after another, and one return to the engine: the manifest says how many are in a round.
void rounds_are_counted(const std::string& folder) {
  const Artifact artifact(folder + "/ngram");
  Client client(artifact);
  Settings settings;
  settings.k = 4;
  client.set(settings);
  client.set_drafter([](const Tokens&, size_t k) { return Tokens(k, 1); });
  CHECK(client.append(prompt_of(9)) == SPECC_OK);
  client.generate(3);
  const double rounds = client.stat("rounds");
  CHECK(client.stat("drafts") == rounds);
  CHECK(client.stat("launches") == 5 * rounds);  // cat, positions, lm, cache_copy, accept
  CHECK(client.stat("host_syncs") == rounds);
  CHECK(specc_session_set_int(client.get(), "logprobs", 0) == SPECC_OK);
  CHECK(client.append({1}) == SPECC_OK);
  client.generate(3);
  CHECK(client.stat("launches") < 5 * client.stat("rounds"));  // no accept: the engine chooses
}

// Whoever drafts, nothing returns to the engine between the draft and the choice.
void a_round_is_one_function(const std::string& folder) {
  for (const std::string kind : {"ngram", "suffix", "tap", "model", "pairs", "drawn", "whole"}) {
    const Artifact artifact(folder + "/" + kind);
    Client client(artifact);
    for (const int64_t k : {0, 2, 4}) {
      Settings settings;
      settings.k = k;
      client.rewind(0);
      client.set(settings);
      CHECK(client.append(prompt_of(9)) == SPECC_OK);
      client.generate();
      CHECK_NOTE(client.stat("host_syncs") == client.stat("rounds"), kind + " " + std::to_string(k));
    }
  }
}

}  // namespace

void policy_test(const std::string& folder) {
  names();
  numbers();
  window();
  members();
  what_is_played(folder);
  refusals(folder);
  rounds_are_counted(folder);
  a_round_is_one_function(folder);
  the_text_is_the_same(folder);
}
