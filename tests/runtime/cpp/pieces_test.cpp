// Texts whose tokens the engine chooses: every artifact and draft length against plain decoding with the same rules.

#include <algorithm>
#include <functional>
#include <optional>

#include "check.h"
#include "client.h"
#include "tests.h"

namespace {

constexpr size_t kMaxLen = 64;
constexpr int64_t kLengths[] = {-1, 0, 1, 2, 4};
constexpr int64_t kPlantedBan = 4;

void must(specc_result code) {
  if (code != SPECC_OK) throw std::runtime_error(specc_last_error());
}

// What a test asks for, told to a session by name and to plain decoding as it is written down here.
struct Rules {
  const char* name;
  std::function<void(specc_session*)> set;
  // logits[0..kVocab) before the token at text.size(); the first `prompt` of `text` were given.
  std::function<void(float* logits, const Tokens& text, size_t prompt)> change;
};

void float_option(specc_session* session, const char* name, double value) {
  must(specc_session_set_float(session, name, value));
}

size_t count_of(const Tokens& text, size_t from, int64_t token) {
  return static_cast<size_t>(std::count(text.begin() + static_cast<ptrdiff_t>(from), text.end(), token));
}

size_t odd_tokens(void*, const int64_t*, size_t, size_t, const int64_t* drafts, size_t n_drafts, uint32_t* mask,
                  size_t words) {
  size_t allowed = 0;
  while (allowed < n_drafts && drafts[allowed] % 2 == 1) ++allowed;
  for (size_t word = 0; word < (allowed + 1) * words; ++word) mask[word] = 0xAAAAAAAAu;
  return allowed;
}

const Rules kNothing = {
    "a bias of nothing",
    [](specc_session* session) {
      const int64_t id = 7;
      const float bias = 0;
      must(specc_session_set_logit_bias(session, &id, &bias, 1));
    },
    [](float*, const Tokens&, size_t) {},
};

const Rules kPenalties = {
    "penalties",
    [](specc_session* session) {
      float_option(session, "repetition_penalty", 1.5);
      float_option(session, "frequency_penalty", 0.75);
      float_option(session, "presence_penalty", 0.5);
    },
    [](float* logits, const Tokens& text, size_t prompt) {  // the formulas of vLLM's apply_penalties
      for (int64_t v = 0; v < tiny::kValid; ++v) {
        const size_t seen = count_of(text, 0, v), made = count_of(text, prompt, v);
        if (seen > 0) logits[v] = logits[v] > 0 ? logits[v] / 1.5f : logits[v] * 1.5f;
        logits[v] -= 0.75f * static_cast<float>(made);
        logits[v] -= 0.5f * static_cast<float>(made > 0);
      }
    },
};

const Rules kBias = {
    "bias and bans",
    [](specc_session* session) {
      const int64_t ids[] = {11, 12};
      const float bias[] = {5.25f, -2};
      must(specc_session_set_logit_bias(session, ids, bias, 2));
      must(specc_session_set_ids(session, "banned_token_ids", &kPlantedBan, 1));
    },
    [](float* logits, const Tokens&, size_t) {
      logits[11] += 5.25f;
      logits[12] -= 2;
      logits[kPlantedBan] = -1e30f;
    },
};

const Rules kMask = {
    "odd tokens alone",
    [](specc_session* session) { must(specc_session_set_mask(session, odd_tokens, nullptr)); },
    [](float* logits, const Tokens&, size_t) {
      for (int64_t v = 0; v < tiny::kValid; v += 2) logits[v] = -1e30f;
    },
};

Tokens decode(const Rules& rules, Tokens text, const Settings& settings) {
  const size_t prompt = text.size();
  float row[tiny::kVocab];
  while (text.size() < std::min(prompt + settings.max_tokens, kMaxLen)) {
    tiny::logits(text.data(), text.size(), tiny::kSalt, row);
    rules.change(row, text, prompt);
    text.push_back(
        tiny::choose(row, tiny::kValid, settings.temperature, settings.seed, static_cast<int64_t>(text.size())));
  }
  return Tokens(text.begin() + static_cast<ptrdiff_t>(prompt), text.end());
}

void every_artifact(const std::string& folder) {
  for (const std::string kind : {"ngram", "suffix", "none", "tap", "model", "pairs"}) {
    const Artifact artifact(folder + "/" + kind);
    for (const Rules* rules : {&kNothing, &kPenalties, &kBias, &kMask}) {
      Client client(artifact);
      rules->set(client.get());
      for (const int64_t k : kLengths) {
        for (const size_t length : {1, 3, 6, 50}) {
          for (const double temperature : {0.0, 2.0}) {
            Settings settings;
            settings.k = k;
            settings.temperature = temperature;
            settings.seed = static_cast<int64_t>(length);
            client.rewind(0);
            client.set(settings);
            const Tokens prompt = prompt_of(length, k + 2);
            must(client.append(prompt));
            const Tokens got = client.generate();
            CHECK_NOTE(got == decode(*rules, prompt, settings),
                       kind + ", " + rules->name + ", K " + std::to_string(k) + ", prompt " + std::to_string(length) +
                           ", temperature " + std::to_string(temperature) + ": " + specc_last_error());
          }
        }
      }
    }
  }
}

// Drafts of a caller who knows the rules are kept, and those that a grammar forbids are never verified.
void drafts_count(const std::string& folder) {
  const Artifact artifact(folder + "/ngram");
  Settings settings;
  settings.k = 4;
  settings.max_tokens = 21;
  const Tokens prompt = prompt_of(6);
  for (const Rules* rules : {&kPenalties, &kMask}) {
    Client client(artifact);
    rules->set(client.get());
    client.set(settings);
    const Tokens expected = decode(*rules, prompt, settings);
    size_t wrong = 99;
    client.set_drafter([&](const Tokens& committed, size_t k) {
      const auto from = expected.begin() + static_cast<ptrdiff_t>(committed.size() - prompt.size());
      Tokens draft(from, std::min(from + static_cast<ptrdiff_t>(k), expected.end()));
      if (wrong < draft.size()) draft[wrong] = 2 * (draft[wrong] / 2);
      return draft;
    });
    for (const size_t place : {99, 2}) {
      wrong = place;
      client.rewind(0);
      must(client.append(prompt));
      CHECK(client.generate() == expected);
      const double cuts = client.stat("cut_mismatch") + client.stat("cut_grammar");
      if (place == 99) {
        CHECK_EQ(client.stat("accepted_tokens"), client.stat("draft_tokens"));
        CHECK_EQ(cuts, 0.0);
      } else {
        CHECK(cuts > 0);
        CHECK_EQ(client.stat("cut_mismatch") > 0, rules == &kPenalties);
        CHECK_EQ(client.stat("cut_grammar") > 0, rules == &kMask);
      }
    }
  }
}

void logprobs(const std::string& folder) {
  const Artifact artifact(folder + "/suffix");
  for (const int64_t k : kLengths) {
    Client client(artifact);
    Settings settings;
    settings.k = k;
    client.set(settings);
    must(specc_session_set_int(client.get(), "logprobs", 3));
    Tokens text = prompt_of(6);
    must(client.append(text));
    int64_t token = 0;
    while (specc_session_next(client.get(), &token) == SPECC_OK) {
      float row[tiny::kVocab], chosen = 0, best[3] = {};
      int64_t ids[3] = {};
      size_t count = 0;
      tiny::logits(text.data(), text.size(), tiny::kSalt, row);
      double total = 0;
      for (int64_t v = 0; v < tiny::kValid; ++v) total += std::exp(static_cast<double>(row[v]));
      const auto right = [&](float found, int64_t id) { return std::abs(found - (row[id] - std::log(total))) < 1e-4; };
      CHECK_EQ(specc_session_logprobs(client.get(), &chosen, ids, best, 3, &count), SPECC_OK);
      CHECK_EQ(count, size_t{3});
      CHECK(right(chosen, token));
      CHECK_EQ(ids[0], token);  // greedy
      for (size_t i = 0; i < 3; ++i) CHECK(right(best[i], ids[i]));
      CHECK(best[0] >= best[1] && best[1] >= best[2]);
      CHECK_EQ(specc_session_logprobs(client.get(), &chosen, ids, best, 2, &count), SPECC_INVALID);
      text.push_back(token);
    }
    CHECK_EQ(text.size(), size_t{6 + 20});
    must(client.append(prompt_of(1)));
    CHECK_EQ(specc_session_logprobs(client.get(), nullptr, nullptr, nullptr, 0, nullptr), SPECC_INVALID);
  }
}

// What is told of text[first..), which an append added, is what the model says of it.
void check_prompt(specc_session* session, const Tokens& text, size_t first, const std::string& note) {
  for (size_t at = first; at < text.size(); ++at) {
    float row[tiny::kVocab], own = 1, best[3] = {};
    int64_t ids[3] = {}, rank = -1;
    size_t count = 9;
    must(specc_session_prompt_logprobs(session, at - first, &own, &rank, ids, best, 3, &count));
    if (at == 0) {
      CHECK_NOTE(rank == 0 && count == 0, note);
      continue;
    }
    tiny::logits(text.data(), at, tiny::kSalt, row);
    double total = 0;
    for (int64_t v = 0; v < tiny::kValid; ++v) total += std::exp(static_cast<double>(row[v]));
    const auto right = [&](float found, int64_t id) { return std::abs(found - (row[id] - std::log(total))) < 1e-4; };
    CHECK_NOTE(right(own, text[at]), note + ", token " + std::to_string(at));
    int64_t before = 0;
    for (int64_t v = 0; v < tiny::kValid; ++v) before += row[v] > row[text[at]] || (row[v] == row[text[at]] && v < text[at]);
    CHECK_EQ(rank, before + 1);
    CHECK_EQ(count, size_t{3});
    for (size_t i = 0; i < 3; ++i) CHECK_NOTE(right(best[i], ids[i]), note);
    CHECK(best[0] >= best[1] && best[1] >= best[2]);
    if (rank <= 3) CHECK_EQ(ids[rank - 1], text[at]);
  }
  CHECK_EQ(specc_session_prompt_logprobs(session, text.size() - first, nullptr, nullptr, nullptr, nullptr, 0, nullptr),
           SPECC_INVALID);
}

// A prompt's own tokens, of an empty text, of one that goes on and of one that was cut; what follows is the same.
void prompt_logprobs(const std::string& folder) {
  for (const std::string kind : {"ngram", "none", "tap", "model", "pairs", "batch-model"}) {
    const Artifact artifact(folder + "/" + kind);
    specc_batch* batch = nullptr;
    if (kind == "batch-model") must(specc_batch_open(artifact.get(), 0, &batch));
    {
      Client alone(artifact);
      std::optional<Client> beside, of_batch;
      if (batch != nullptr) {
        beside.emplace(batch);  // whose rows come first
        of_batch.emplace(batch);
        must(beside->append(prompt_of(9, 5)));
      }
      Client& client = batch != nullptr ? *of_batch : alone;
      must(specc_session_set_int(client.get(), "prompt_logprobs", 3));
      for (const size_t length : {size_t{1}, size_t{2}, size_t{5}, size_t{13}, size_t{50}, kMaxLen}) {
        const std::string note = kind + ", prompt " + std::to_string(length);
        Settings settings;
        settings.max_tokens = 6;
        client.set(settings);
        client.rewind(0);
        Tokens text = prompt_of(length, 2);
        must(client.append(text));
        check_prompt(client.get(), text, 0, note);
        const Tokens said = client.generate();
        CHECK_NOTE(said == plain(text, settings, kMaxLen).tokens, note);
        check_prompt(client.get(), text, 0, note + ", later");
        if (length != 13) continue;
        text = joined(text, said);
        const size_t whole = text.size();
        text = joined(text, prompt_of(7, 1));
        must(client.append(prompt_of(7, 1)));
        check_prompt(client.get(), text, whole, note + ", went on");
        CHECK_NOTE(client.generate() == plain(text, settings, kMaxLen).tokens, note);
        client.rewind(9);
        text = joined(Tokens(text.begin(), text.begin() + 9), prompt_of(11, 4));
        must(client.append(prompt_of(11, 4)));
        check_prompt(client.get(), text, 9, note + ", was cut");
        CHECK_NOTE(client.generate() == plain(text, settings, kMaxLen).tokens, note);
      }
      client.rewind(0);
      specc_session_cancel(client.get());
      CHECK_EQ(client.append(prompt_of(9)), SPECC_CANCELLED);
      CHECK_EQ(client.append({5, tiny::kNanToken, 6}), SPECC_RUNTIME);
      CHECK(std::string(specc_last_error()).rfind("SPECC-E0604", 0) == 0);
      check_prompt(client.get(), {}, 0, kind);
      must(client.append(prompt_of(9)));
      check_prompt(client.get(), prompt_of(9), 0, kind);
    }
    if (batch != nullptr) specc_batch_close(batch);
  }
  const Artifact artifact(folder + "/whole");  // whose rounds have no pieces
  Client client(artifact);
  CHECK_EQ(specc_session_set_int(client.get(), "prompt_logprobs", 0), SPECC_INVALID);
  must(specc_session_set_int(client.get(), "prompt_logprobs", -1));
}

void no_end_too_early(const std::string& folder) {
  const Artifact artifact(folder + "/eos");  // token 3 ends
  for (const int64_t k : kLengths) {
    Client client(artifact);
    Settings settings;
    settings.k = k;
    settings.max_tokens = 40;
    client.set(settings);
    const Plain early = plain(prompt_of(6, 3), settings, kMaxLen, {3});
    CHECK(early.finish == "stop" && early.tokens.size() < 12);
    must(specc_session_set_int(client.get(), "min_tokens", 12));
    must(client.append(prompt_of(6, 3)));
    const Tokens got = client.generate();
    const auto end = std::find(got.begin(), got.end(), 3) - got.begin();
    CHECK(end >= 12);
    CHECK(std::equal(early.tokens.begin(), early.tokens.end() - 1, got.begin()));
  }
}

size_t all_of_none(void*, const int64_t*, size_t, size_t, const int64_t*, size_t n_drafts, uint32_t*, size_t) {
  return n_drafts + 1;
}

void failures_leave_the_text(const std::string& folder) {
  const Artifact artifact(folder + "/model");
  Client client(artifact);
  Settings settings;
  client.set(settings);
  must(client.append(prompt_of(5)));
  must(specc_session_set_mask(client.get(), all_of_none, nullptr));
  CHECK(client.generate().empty());
  CHECK_EQ(client.result, SPECC_RUNTIME);
  CHECK(std::string(specc_last_error()).rfind("SPECC-E0610", 0) == 0);
  must(specc_session_set_mask(client.get(), nullptr, nullptr));
  CHECK(client.generate() == plain(prompt_of(5), settings, kMaxLen).tokens);

  CHECK_EQ(specc_session_set_int(client.get(), "top_k", -1), SPECC_INVALID);
  CHECK_EQ(specc_session_set_float(client.get(), "top_p", 0), SPECC_INVALID);
  CHECK_EQ(specc_session_set_text(client.get(), "acceptance_rule", "typical"), SPECC_INVALID);
  CHECK_EQ(specc_session_set_text(client.get(), "rule", "match"), SPECC_INVALID);
  CHECK_EQ(specc_session_set_ids(client.get(), "banned", nullptr, 0), SPECC_INVALID);
}

void artifacts_of_before(const std::string& folder) {
  const Artifact artifact(folder + "/whole");  // whose rounds have no pieces
  Client client(artifact);
  must(specc_session_set_float(client.get(), "temperature", 1));
  CHECK_EQ(specc_session_set_float(client.get(), "top_p", 0.5), SPECC_INVALID);
  CHECK_EQ(specc_session_set_mask(client.get(), odd_tokens, nullptr), SPECC_INVALID);
  CHECK(std::string(specc_last_error()).find("compile it again") != std::string::npos);
  Settings settings;
  client.set(settings);
  must(client.append(prompt_of(5)));
  CHECK(client.generate() == plain(prompt_of(5), settings, kMaxLen).tokens);
}

void rounds_allocate_nothing(const std::string& folder) {
  const Artifact artifact(folder + "/model");
  Client client(artifact);
  kPenalties.set(client.get());
  must(specc_session_set_float(client.get(), "temperature", 1));
  must(specc_session_set_float(client.get(), "top_p", 0.9));
  must(specc_session_set_int(client.get(), "logprobs", 2));
  must(specc_session_set_int(client.get(), "num_speculative_tokens", 4));  // what others leave behind is made up for
  must(client.append(prompt_of(5)));
  int64_t token = 0;
  const long before = allocations_so_far();
  while (specc_session_next(client.get(), &token) == SPECC_OK) {
  }
  CHECK_EQ(allocations_so_far() - before, 0L);
}

}  // namespace

void pieces_test(const std::string& artifacts) {
  every_artifact(artifacts);
  drafts_count(artifacts);
  logprobs(artifacts);
  prompt_logprobs(artifacts);
  no_end_too_early(artifacts);
  failures_leave_the_text(artifacts);
  artifacts_of_before(artifacts);
  rounds_allocate_nothing(artifacts);
}
