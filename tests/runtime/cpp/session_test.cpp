// Speculation changes nothing: every artifact, draft length, drafter, cap and stop against plain decoding.

#include <thread>

#include "check.h"
#include "client.h"
#include "tests.h"

namespace {

constexpr size_t kMaxLen = 64;
constexpr int64_t kLengths[] = {-1, 0, 1, 2, 4};

std::string label(const std::string& what, size_t prompt, const Settings& settings) {
  return what + ", prompt " + std::to_string(prompt) + ", K " + std::to_string(settings.k) + ", max_tokens " +
         std::to_string(settings.max_tokens) + ", temperature " + std::to_string(settings.temperature);
}

void check_run(Client& client, const Tokens& prompt, const Settings& settings, const std::string& what,
               const Tokens& eos = {}) {
  const Plain expected = plain(prompt, settings, kMaxLen, eos);
  const std::string note = label(what, prompt.size(), settings);
  client.rewind(0);
  client.set(settings);
  CHECK_NOTE(client.append(prompt) == SPECC_OK, note + specc_last_error());
  const Tokens got = client.generate();
  CHECK_NOTE(client.result == SPECC_DONE, note + ": " + specc_last_error());
  CHECK_NOTE(got == expected.tokens, note);
  CHECK_NOTE(client.finish() == expected.finish, note + ": " + client.finish());
  CHECK_NOTE(client.stat("new_tokens") == static_cast<double>(got.size()), note);
}

// Proposes what plain decoding will say, but for a planted error after `right` tokens.
Client::Drafter oracle(const Settings& settings, std::function<size_t()> right) {
  return [settings, right](const Tokens& committed, size_t k) {
    Settings ahead = settings;
    ahead.max_tokens = k;
    ahead.stop.clear();
    Tokens draft = plain(committed, ahead, kMaxLen + 100).tokens;
    const size_t wrong = right();
    if (wrong < draft.size()) draft[wrong] = (draft[wrong] + 1) % 90;
    return draft;
  };
}

void every_artifact(const std::string& folder) {
  for (const std::string kind : {"ngram", "suffix", "none", "tap", "model", "pairs"}) {
    const Artifact artifact(folder + "/" + kind);
    Client client(artifact);
    for (const int64_t k : kLengths) {
      for (size_t length = 1; length <= 10; ++length) {  // the chunk is 4
        for (const double temperature : {0.0, 3.0}) {
          Settings settings;
          settings.k = k;
          settings.temperature = temperature;
          settings.seed = static_cast<int64_t>(length);
          check_run(client, prompt_of(length, k + 2), settings, kind);
        }
      }
      for (size_t cap = 0; cap <= 11; ++cap) {
        Settings settings;
        settings.k = k;
        settings.max_tokens = cap;
        check_run(client, prompt_of(5), settings, kind);
      }
      for (size_t length = kMaxLen - 8; length <= kMaxLen; ++length) {
        Settings settings;
        settings.k = k;
        check_run(client, prompt_of(length), settings, kind + " at the edge");
      }
    }
  }
}

void every_accepted_length(const std::string& folder) {
  const Artifact artifact(folder + "/ngram");
  for (const int64_t k : {1, 2, 4}) {
    for (size_t right = 0; right <= static_cast<size_t>(k); ++right) {
      for (size_t stop_at = 0; stop_at <= 12; ++stop_at) {
        Client client(artifact);
        Settings settings;
        settings.k = k;
        if (stop_at < 12) settings.stop = {plain(prompt_of(6, 3), settings, kMaxLen).tokens[stop_at]};
        client.set_drafter(oracle(settings, [right] { return right; }));
        check_run(client, prompt_of(6, 3), settings, "oracle " + std::to_string(right));
        if (stop_at == 12 && right == static_cast<size_t>(k)) {
          CHECK_EQ(client.stat("accepted_tokens"), client.stat("draft_tokens"));
        }
        if (right == 0) CHECK_EQ(client.stat("accepted_tokens"), 0.0);
      }
    }
  }
  Client client(artifact);
  Settings settings;
  settings.max_tokens = 50;
  size_t round = 0;
  client.set_drafter(oracle(settings, [&round] { return round++ % 5; }));
  check_run(client, prompt_of(9), settings, "alternating");
  client.set_drafter([](const Tokens& committed, size_t k) { return Tokens(committed.size() % (k + 1), 3); });
  check_run(client, prompt_of(9), settings, "short proposals");
}

void eos_inside_blocks(const std::string& folder) {
  const Artifact artifact(folder + "/eos");  // token 3 ends
  for (size_t length = 1; length <= 12; ++length) {
    for (const int64_t k : kLengths) {
      Client client(artifact);
      Settings settings;
      settings.k = k;
      client.set_drafter(oracle(settings, [] { return size_t{99}; }));
      check_run(client, prompt_of(length, 1), settings, "eos", {3});
    }
  }
}

// The state is that of a fresh run: drafters that lean on it stay exact, and so does the text.
void turns(const std::string& folder) {
  for (const std::string kind : {"ngram", "tap", "model", "pairs"}) {
    const Artifact artifact(folder + "/" + kind);
    for (const int64_t k : kLengths) {
      for (size_t read = 0; read <= 7; ++read) {
        Client client(artifact);
        Settings settings;
        settings.k = k;
        settings.depth = kind == "tap" ? 3 : -1;
        settings.max_tokens = 9;
        client.set(settings);
        const Tokens prompt = prompt_of(6, 1), second = prompt_of(5, 2);
        CHECK(client.append(prompt) == SPECC_OK);
        const Tokens heard = client.generate(read);
        CHECK(client.append(second) == SPECC_OK);  // what was not read is not part of the text
        const Tokens text = joined(joined(prompt, heard), second);
        CHECK_NOTE(client.generate() == plain(text, settings, kMaxLen).tokens,
                   label(kind + " second turn", read, settings));
        if (kind != "ngram")
          CHECK_NOTE(client.stat("accepted_tokens") == client.stat("draft_tokens"), label(kind, read, settings));

        for (size_t keep = text.size(); keep > 0; keep -= keep > 3 ? 3 : 1) {
          client.rewind(keep);
          const Tokens kept(text.begin(), text.begin() + static_cast<ptrdiff_t>(keep));
          const Tokens more = client.generate(4);
          Settings four = settings;
          four.max_tokens = 4;
          CHECK_NOTE(more == plain(kept, four, kMaxLen).tokens,
                     label(kind + " rewound to " + std::to_string(keep), read, settings));
          CHECK(client.result == SPECC_OK);
        }
        if (kind != "ngram")
          CHECK_NOTE(client.stat("accepted_tokens") == client.stat("draft_tokens"), label(kind, read, settings));
      }
    }
  }
}

void lengths_changing_every_round(const std::string& folder) {
  for (const std::string kind : {"ngram", "tap", "model", "pairs"}) {
    const Artifact artifact(folder + "/" + kind);
    Client client(artifact);
    Settings settings;
    settings.max_tokens = 40;
    client.set(settings);
    CHECK(client.append(prompt_of(7)) == SPECC_OK);
    Tokens tokens;
    for (size_t i = 0; i < 40; ++i) {
      CHECK(specc_session_set_int(client.get(), "num_speculative_tokens", kLengths[i % 5]) == SPECC_OK);
      if (kind == "tap") CHECK(specc_session_set_int(client.get(), "draft_depth", i % 3 == 0 ? 2 : 3) == SPECC_OK);
      tokens = joined(tokens, client.generate(1));
    }
    CHECK_NOTE(tokens == plain(prompt_of(7), settings, kMaxLen).tokens, kind);
    if (kind == "model" || kind == "pairs") CHECK_EQ(client.stat("accepted_tokens"), client.stat("draft_tokens"));
  }
}

// Rounds without drafts leave a separate draft model behind; whatever happens meanwhile, it is brought up before it
// drafts.
void draft_model_left_behind(const std::string& folder, const std::string& kind) {
  const Artifact artifact(folder + "/" + kind);
  Client client(artifact);
  Settings off, on;
  off.k = 0;
  on.k = 4;
  off.max_tokens = on.max_tokens = 40;
  client.set(off);
  Tokens text = prompt_of(7);
  CHECK(client.append(text) == SPECC_OK);
  text = joined(text, client.generate(8));
  text.resize(text.size() - 2);
  client.rewind(text.size());
  text = joined(text, client.generate(1));  // fetches the tap row by a prefill of one row, beyond the gap
  client.set(on);
  text = joined(text, client.generate(10));
  client.rewind(9);
  text.resize(9);
  off.temperature = 5;  // another text than the one taken back
  client.set(off);
  text = joined(text, client.generate(7));
  client.set(on);
  CHECK(client.generate(10) == plain(text, on, text.size() + 10).tokens);
  CHECK(client.stat("draft_tokens") > 0);
  CHECK_EQ(client.stat("accepted_tokens"), client.stat("draft_tokens"));
}

void many_sessions(const std::string& folder) {
  const Artifact artifact(folder + "/ngram", 2);
  const Artifact again(folder + "/ngram", 2);  // one library, two artifacts
  std::vector<std::thread> threads;
  std::vector<Tokens> got(3);
  const Settings settings;
  for (size_t i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      Client client(i == 2 ? again : artifact);
      client.set(settings);
      client.append(prompt_of(5 + i));
      got[i] = client.generate();
    });
  }
  for (auto& thread : threads) thread.join();
  for (size_t i = 0; i < 3; ++i) CHECK(got[i] == plain(prompt_of(5 + i), settings, kMaxLen).tokens);
}

void a_round_allocates_nothing(const std::string& folder) {
  for (const std::string kind : {"ngram", "suffix", "tap", "model", "pairs"}) {
    const Artifact artifact(folder + "/" + kind);
    for (const int64_t k : kLengths) {
      Client client(artifact);
      Settings settings;
      settings.k = k;
      settings.max_tokens = 50;
      client.set(settings);
      client.append(prompt_of(5));
      int64_t token = 0;
      long before = 0;
      for (int i = 0; i < 50; ++i) {
        if (i == 30) before = allocations_so_far();
        CHECK(specc_session_next(client.get(), &token) == SPECC_OK);
      }
      const long after = allocations_so_far();
      CHECK_NOTE(after == before, label(kind, 5, settings));
    }
  }
}

}  // namespace

void session_test(const std::string& folder) {
  every_artifact(folder);
  every_accepted_length(folder);
  eos_inside_blocks(folder);
  turns(folder);
  lengths_changing_every_round(folder);
  draft_model_left_behind(folder, "model");
  draft_model_left_behind(folder, "pairs");
  many_sessions(folder);
  a_round_allocates_nothing(folder);
}
