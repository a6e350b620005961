// Several texts in one pass: each has the tokens that it has alone, whatever its neighbours do, and how much they draft.

#include <iterator>
#include <memory>
#include <random>

#include "../../../runtime/cpp/core/engine/batch_lengths.h"
#include "check.h"
#include "client.h"
#include "tests.h"

namespace {

constexpr size_t kMaxLen = 64, kTexts = 3;
constexpr int64_t kLengths[] = {-1, 0, 1, 2, 4};
const char* const kKinds[] = {"ngram", "none", "tap", "model", "drawn"};

class Batch {
 public:
  explicit Batch(const Artifact& artifact, int32_t texts = 0) {
    if (specc_batch_open(artifact.get(), texts, &handle_) != SPECC_OK) throw std::runtime_error(specc_last_error());
  }
  ~Batch() { specc_batch_close(handle_); }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  specc_batch* get() const { return handle_; }

  specc_result step(const std::vector<Client*>& clients) {
    std::vector<specc_session*> sessions;
    for (const Client* client : clients) sessions.push_back(client->get());
    return specc_batch_step(handle_, sessions.data(), sessions.size());
  }
  double stat(const char* name) const {
    double value = -1;
    CHECK_EQ(specc_batch_stat(handle_, name, &value), SPECC_OK);
    return value;
  }

 private:
  specc_batch* handle_ = nullptr;
};

// A text of a batch, and what was read of it.
struct Text {
  Text(Batch& batch, Tokens prompt, const Settings& settings) : client(batch.get()), text(prompt), settings(settings) {
    client.set(settings);
    CHECK_EQ(client.append(prompt), SPECC_OK);
  }
  // Reads what the last step gave. False at the end.
  bool read() {
    const auto made = static_cast<size_t>(client.stat("new_tokens"));
    const Tokens got = client.generate(made - tokens.size());
    tokens.insert(tokens.end(), got.begin(), got.end());
    text.insert(text.end(), got.begin(), got.end());
    return client.finish().empty();
  }
  Client client;
  Tokens text, tokens;
  Settings settings;
};

Settings settings_of(int64_t k, size_t max_tokens, double temperature = 0, int64_t seed = 0) {
  Settings settings;
  settings.k = k;
  settings.max_tokens = max_tokens;
  settings.temperature = temperature;
  settings.seed = seed;
  return settings;
}

void same_as_alone(const std::string& folder) {
  for (const std::string kind : kKinds) {
    const Artifact artifact(folder + "/batch-" + kind, 2);  // which share out the texts
    Batch batch(artifact);
    for (const int64_t k : kLengths) {
      for (const double temperature : {0.0, 3.0}) {
        std::vector<std::unique_ptr<Text>> texts;
        for (size_t i = 0; i < kTexts; ++i) {  // the last runs into the end of its context
          const Tokens prompt = prompt_of(i == 2 ? kMaxLen - 9 : 3 + 4 * i, static_cast<int64_t>(i) + k + 2);
          texts.push_back(std::make_unique<Text>(batch, prompt, settings_of(k, 12 + 5 * i, temperature, 7)));
        }
        std::vector<Client*> running;
        for (const auto& each : texts) running.push_back(&each->client);
        while (!running.empty()) {
          CHECK_EQ(batch.step(running), SPECC_OK);
          running.clear();
          for (const auto& each : texts) {
            if (each->client.finish().empty() && each->read()) running.push_back(&each->client);
          }
        }
        for (const auto& each : texts) {
          const size_t prompt = each->text.size() - each->tokens.size();
          const Plain expected = plain(Tokens(each->text.begin(), each->text.begin() + static_cast<ptrdiff_t>(prompt)),
                                       each->settings, kMaxLen);
          const std::string note = kind + ", K " + std::to_string(k) + ", prompt " + std::to_string(prompt);
          CHECK_NOTE(each->tokens == expected.tokens, note);
          CHECK_NOTE(each->client.finish() == expected.finish, note);
        }
      }
    }
    CHECK(batch.stat("texts") > 2 * batch.stat("passes"));
    CHECK(batch.stat("rows") >= batch.stat("texts"));
  }
}

// Joins, leaves, steps of some, rounds of one, appends, rewinds, cancels and stop tokens in any order: each token that is
// read is what plain decoding says after the text so far. Who joins takes the rows of who left, full of another text.
// Until each kind of artifact has played so many rounds of texts in its batches.
void in_any_order(const std::string& folder, size_t rounds_of_each) {
  for (const std::string kind : kKinds) {
    const Artifact artifact(folder + "/batch-" + kind, 2);
    size_t rounds = 0, stops = 0;
    for (unsigned seed = 0; rounds < rounds_of_each || stops == 0; ++seed) {
      std::mt19937 draw(seed);
      const auto below = [&](size_t n) { return draw() % n; };
      Batch batch(artifact);
      std::vector<std::unique_ptr<Text>> texts(kTexts);
      const auto check_next = [&](Text& each, specc_result allowed) {
        int64_t token = -1;
        const specc_result result = specc_session_next(each.client.get(), &token);
        CHECK_NOTE(result == SPECC_OK || result == SPECC_DONE || result == allowed, specc_last_error());
        Settings one = each.settings;
        one.max_tokens = 1;
        const std::string note = kind + ", seed " + std::to_string(seed);
        const bool stopped = each.client.finish() == "stop";
        stops += stopped;
        if (stopped) CHECK_NOTE(plain(each.text, one, kMaxLen).finish == "stop" || result == SPECC_OK, note);
        if (result != SPECC_OK) return;
        CHECK_NOTE(plain(each.text, one, kMaxLen).tokens == Tokens{token}, note);
        each.text.push_back(token);
      };
      for (int turn = 0; turn < 120; ++turn) {
        std::unique_ptr<Text>& one = texts[below(kTexts)];
        if (one == nullptr) {
          const int64_t k = kLengths[below(5)];
          Settings settings = settings_of(k, 1 + below(30), below(2) == 0 ? 0.0 : 2.0, turn);
          if (below(2) == 0) settings.stop = {static_cast<int64_t>(below(9)), static_cast<int64_t>(below(90))};
          one = std::make_unique<Text>(batch, prompt_of(1 + below(20), static_cast<int64_t>(below(40))), settings);
          continue;
        }
        switch (below(9)) {
          case 0:
            one.reset();
            break;
          case 1: {
            const Tokens more = prompt_of(1 + below(3), static_cast<int64_t>(below(30)));
            if (one->text.size() + more.size() > kMaxLen) break;
            CHECK_EQ(one->client.append(more), SPECC_OK);
            one->text = joined(one->text, more);
            break;
          }
          case 2:
            one->text.resize(1 + below(one->text.size()));
            one->client.rewind(one->text.size());
            break;
          case 3:
            specc_session_cancel(one->client.get());
            check_next(*one, SPECC_CANCELLED);
            break;
          case 4:
            check_next(*one, SPECC_DONE);
            break;
          default: {
            std::vector<Client*> some;
            for (const auto& each : texts) {
              if (each != nullptr && below(4) > 0) some.push_back(&each->client);
            }
            CHECK_EQ(batch.step(some), SPECC_OK);
            for (const auto& each : texts) {
              if (each != nullptr && below(3) > 0) check_next(*each, SPECC_DONE);
            }
          }
        }
      }
      rounds += static_cast<size_t>(batch.stat("texts"));
    }
  }
}

size_t odd_tokens(void*, const int64_t*, size_t, size_t, const int64_t* drafts, size_t n_drafts, uint32_t* mask,
                  size_t words) {
  size_t allowed = 0;
  while (allowed < n_drafts && drafts[allowed] % 2 == 1) ++allowed;
  for (size_t word = 0; word < (allowed + 1) * words; ++word) mask[word] = 0xAAAAAAAAu;
  return allowed;
}

// With rules of each text's own; p/q with K fixed, as its tokens follow its rounds.
void with_rules(const std::string& folder) {
  const auto penalties = [](const Client& client) {
    CHECK_EQ(specc_session_set_float(client.get(), "repetition_penalty", 1.5), SPECC_OK);
    CHECK_EQ(specc_session_set_int(client.get(), "logprobs", 2), SPECC_OK);
  };
  const auto masked = [](const Client& client) {
    CHECK_EQ(specc_session_set_mask(client.get(), odd_tokens, nullptr), SPECC_OK);
  };
  const auto rejection = [](const Client& client) {
    CHECK_EQ(specc_session_set_text(client.get(), "acceptance_rule", "rejection"), SPECC_OK);
    CHECK_EQ(specc_session_set_float(client.get(), "top_p", 0.9), SPECC_OK);
  };
  const std::function<void(const Client&)> rules[kTexts] = {penalties, masked, rejection};
  for (const std::string kind : kKinds) {
    const Artifact artifact(folder + "/batch-" + kind);
    const Settings settings = settings_of(4, 25, 1.5, 3);
    std::vector<Tokens> expected;
    for (size_t i = 0; i < kTexts; ++i) {
      Client alone(artifact);
      alone.set(settings);
      rules[i](alone);
      CHECK_EQ(alone.append(prompt_of(5 + i)), SPECC_OK);
      expected.push_back(alone.generate());
    }
    Batch batch(artifact);
    std::vector<std::unique_ptr<Text>> texts;
    std::vector<Client*> all;
    for (size_t i = 0; i < kTexts; ++i) {
      texts.push_back(std::make_unique<Text>(batch, Tokens{1}, settings));
      texts[i]->client.rewind(0);
      rules[i](texts[i]->client);
      CHECK_EQ(texts[i]->client.append(prompt_of(5 + i)), SPECC_OK);
      all.push_back(&texts[i]->client);
    }
    for (int i = 0; i < 25; ++i) {
      CHECK_EQ(batch.step(all), SPECC_OK);
      for (const auto& each : texts) each->read();
      float logprob = 1;
      CHECK_EQ(specc_session_logprobs(all[0]->get(), &logprob, nullptr, nullptr, 0, nullptr), SPECC_OK);
      CHECK(logprob <= 0);
    }
    for (size_t i = 0; i < kTexts; ++i) CHECK_NOTE(texts[i]->tokens == expected[i], kind + std::to_string(i));
  }
}

size_t too_many(void*, const int64_t*, size_t, size_t k, int64_t*) { return k + 1; }
size_t all_of_none(void*, const int64_t*, size_t, size_t, const int64_t*, size_t n_drafts, uint32_t*, size_t) {
  return n_drafts + 1;
}

// A NaN, a drafter and a mask that misbehave: each is told to whom it belongs, once, and the text is as it was.
void failures_are_their_own(const std::string& folder) {
  const Artifact artifact(folder + "/batch-ngram");
  Batch batch(artifact);
  const Settings settings = settings_of(2, 20);
  for (int fault = 0; fault < 3; ++fault) {
    Tokens prompt = prompt_of(6);
    if (fault == 0) prompt.back() = tiny::kNanToken;
    Text bad(batch, prompt, settings), good(batch, prompt_of(8), settings), other(batch, prompt_of(3), settings);
    if (fault == 1) CHECK_EQ(specc_session_set_drafter(bad.client.get(), too_many, nullptr), SPECC_OK);
    if (fault == 2) CHECK_EQ(specc_session_set_mask(bad.client.get(), all_of_none, nullptr), SPECC_OK);
    CHECK_EQ(batch.step({&bad.client, &good.client, &other.client}), SPECC_OK);
    int64_t token = 0;
    CHECK_EQ(specc_session_next(bad.client.get(), &token), SPECC_RUNTIME);
    const char* codes[] = {"SPECC-E0604", "SPECC-E0606", "SPECC-E0610"};
    CHECK_EQ(std::string(specc_last_error()).substr(0, 11), codes[fault]);
    CHECK_EQ(bad.client.stat("new_tokens"), 0.0);
    while (good.read()) CHECK_EQ(batch.step({&bad.client, &good.client}), SPECC_OK);
    CHECK(good.tokens == plain(prompt_of(8), settings, kMaxLen).tokens);
    // And it may go on once the fault is gone.
    if (fault == 0) continue;
    CHECK_EQ(specc_session_next(bad.client.get(), &token), SPECC_RUNTIME);
    CHECK_EQ(specc_session_set_drafter(bad.client.get(), nullptr, nullptr), SPECC_OK);
    CHECK_EQ(specc_session_set_mask(bad.client.get(), nullptr, nullptr), SPECC_OK);
    CHECK(bad.client.generate() == plain(prompt, settings, kMaxLen).tokens);
  }
}

void refusals(const std::string& folder) {
  const Artifact artifact(folder + "/batch-ngram"), alone(folder + "/ngram");
  specc_batch* none = nullptr;
  const auto refused = [](specc_result result, const char* code) {
    CHECK_EQ(result, SPECC_INVALID);
    CHECK_EQ(std::string(specc_last_error()).substr(0, 11), code);
  };
  refused(specc_batch_open(alone.get(), 0, &none), "SPECC-E0601");
  refused(specc_batch_open(alone.get(), 2, &none), "SPECC-E0601");
  refused(specc_batch_open(artifact.get(), 4, &none), "SPECC-E0601");
  refused(specc_batch_open(artifact.get(), -1, &none), "SPECC-E0601");
  Batch two(artifact, 2), other(artifact);
  Client first(two.get()), foreign(other.get()), single(artifact);
  auto second = std::make_unique<Client>(two.get());
  specc_session* third = nullptr;
  refused(specc_batch_session(two.get(), &third), "SPECC-E0607");
  second.reset();
  Client instead(two.get());  // in its place

  refused(two.step({&first, &first}), "SPECC-E0601");
  refused(two.step({&foreign}), "SPECC-E0601");
  refused(two.step({&single}), "SPECC-E0601");
  const int64_t at[] = {0};
  const int64_t* inputs[] = {at, at, at};
  const size_t counts[] = {1, 1, 1};
  refused(specc_session_run(first.get(), "verify_0", inputs, counts, 3, nullptr, 0, nullptr), "SPECC-E0607");
  double value = 0;
  refused(specc_batch_stat(two.get(), "rounds", &value), "SPECC-E0601");

  CHECK_EQ(two.step({&first}), SPECC_OK);  // an empty text is its own affair
  int64_t token = 0;
  refused(specc_session_next(first.get(), &token), "SPECC-E0607");
  CHECK_EQ(two.step({}), SPECC_OK);
  CHECK_EQ(two.stat("passes"), 0.0);
}

// Neither does a session outlive its memory.
void sessions_may_stay(const std::string& folder) {
  std::unique_ptr<Client> client;
  {
    const Artifact artifact(folder + "/batch-model");
    Batch batch(artifact);
    client = std::make_unique<Client>(batch.get());
  }
  client->set(settings_of(2, 10));
  CHECK_EQ(client->append(prompt_of(4)), SPECC_OK);
  CHECK(client->generate() == plain(prompt_of(4), settings_of(2, 10), kMaxLen).tokens);
}

void steps_allocate_nothing(const std::string& folder) {
  for (const std::string kind : kKinds) {
    const Artifact artifact(folder + "/batch-" + kind);
    Batch batch(artifact);
    std::vector<std::unique_ptr<Text>> texts;
    std::vector<specc_session*> all;
    for (size_t i = 0; i < kTexts; ++i) {
      texts.push_back(std::make_unique<Text>(batch, prompt_of(5 + i), settings_of(2, 40)));
      all.push_back(texts.back()->client.get());
    }
    const long before = allocations_so_far();
    int64_t token = 0;
    for (int i = 0; i < 10; ++i) {
      CHECK_EQ(specc_batch_step(batch.get(), all.data(), all.size()), SPECC_OK);
      for (specc_session* each : all) {
        CHECK(specc_session_next(each, &token) == SPECC_OK);
      }
    }
    CHECK_NOTE(allocations_so_far() == before, kind);
  }
}

// ---- how much each drafts ----

using specc::BatchLengths;
using specc::DraftAccount;
using specc::LengthController;

const std::vector<int64_t> kArms = {0, 2, 4, 8};

// Drafts of `count` texts of which `kept` of 8 are right in every round, where a pass costs `base` + `row` * rows; the
// mean of the lengths that are chosen after some rounds.
double settled(size_t count, size_t kept, double base, double row) {
  BatchLengths lengths(kArms);
  std::vector<LengthController> worth(count, LengthController(kArms));
  std::vector<DraftAccount> accounts(count);
  double sum = 0;
  constexpr int kRounds = 60, kLast = 20;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<BatchLengths::Text> texts;
    for (size_t i = 0; i < count; ++i) texts.push_back({&worth[i], &accounts[i], kArms.size() - 1, true, 0, {}});
    lengths.choose(texts);
    size_t rows = 0;
    for (size_t i = 0; i < count; ++i) {
      const auto drafted = static_cast<size_t>(kArms[texts[i].index]);
      const size_t right = std::min(drafted, kept);
      rows += drafted + 1;
      worth[i].observe_acceptance(texts[i].index, right);
      lengths.observe_drafts(accounts[i], texts[i].index, right);
      if (round >= kRounds - kLast) sum += static_cast<double>(drafted);
    }
    lengths.observe_pass(rows, base + row * static_cast<double>(rows));
  }
  return sum / static_cast<double>(kLast * count);
}

void lengths_follow_what_pays() {
  CHECK(settled(4, 8, 1, 0.001) > 7);    // rows are free, and all is right
  CHECK(settled(4, 0, 1, 0.05) < 0.5);   // nothing is right: probes alone
  CHECK(settled(4, 8, 0, 1) < 8);        // a row costs what a token is worth
  CHECK(settled(1, 2, 1, 0.1) > 1.5);    // one text pays for its drafts,
  CHECK(settled(32, 2, 1, 0.3) < 0.5);   // where a batch fills the pass they do not
  CHECK(settled(32, 2, 1, 0.3) < settled(1, 2, 1, 0.3));
}

void fixed_lengths_are_kept() {
  BatchLengths lengths(kArms);
  LengthController worth(kArms);
  DraftAccount account;
  for (int round = 0; round < 20; ++round) {
    std::vector<BatchLengths::Text> texts = {{&worth, &account, 2, false, 0, {}}, {&worth, &account, 1, true, 0, {}}};
    lengths.choose(texts);
    CHECK_EQ(texts[0].index, size_t{2});
    CHECK(texts[1].index <= 1);
    lengths.observe_pass(6, 1);
  }
}

void a_line_through_costs() {
  specc::PassCost cost;
  CHECK(!cost.known());
  for (int i = 0; i < 50; ++i) cost.observe(4 + i % 8, 3 + 0.5 * (4 + i % 8));
  CHECK(cost.of_row() > 0.48 && cost.of_row() <= 0.5);
  CHECK(cost.seconds(8) > 6.9 && cost.seconds(8) < 7.1);
  cost.observe(8, 1000);  // interrupted
  CHECK(cost.seconds(8) < 7.3);
  specc::PassCost flat;
  for (int i = 0; i < 50; ++i) flat.observe(4, 2);
  CHECK_EQ(flat.of_row(), 0.0);
}

}  // namespace

void batch_test(const std::string& artifacts) {
  a_line_through_costs();
  fixed_lengths_are_kept();
  lengths_follow_what_pays();
  same_as_alone(artifacts);
  in_any_order(artifacts, 500);
  with_rules(artifacts);
  failures_are_their_own(artifacts);
  refusals(artifacts);
  sessions_may_stay(artifacts);
  steps_allocate_nothing(artifacts);
}

void rounds_test(const std::string& artifacts, size_t rounds) {
  const size_t kinds = std::size(kKinds);
  in_any_order(artifacts, (rounds + kinds - 1) / kinds);
}
