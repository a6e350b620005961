// The sampler for Python: as the engine calls it, and with every outcome of chance played through.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "../../../runtime/cpp/core/error.h"
#include "../../../runtime/cpp/core/sampling/chance.h"
#include "../../../runtime/cpp/core/sampling/rules.h"
#include "../../../runtime/cpp/core/sampling/sampler.h"

using namespace specc;

namespace {

// Takes, at each question, the answer that the script says, and notes what else could have been answered.
class ScriptedChance final : public Chance {
 public:
  struct Question {
    std::vector<double> probabilities;
    size_t answer;
  };
  explicit ScriptedChance(bool greedy_residual) : greedy_residual_(greedy_residual) {}

  int64_t choose(const Row& row, uint64_t) override {
    Law law;
    law.set(row.logits, row.vocab_size, row.highest, row.temperature, row.kept);
    return law.ids[answer(law.mass)];
  }
  bool happens(double probability, size_t) override { return answer({1 - probability, probability}) == 1; }
  int64_t pick(const Law& law, Purpose purpose, size_t) override {
    if (greedy_residual_ && purpose == Purpose::kResidual) {
      return law.ids[static_cast<size_t>(std::max_element(law.mass.begin(), law.mass.end()) - law.mass.begin())];
    }
    return law.ids[answer(law.mass)];
  }

  void begin() { asked_ = 0; }
  double probability() const {
    double product = 1;
    for (const auto& each : script_) product *= each.probabilities[each.answer];
    return product;
  }
  // The next script; false when all were played.
  bool advance() {
    while (!script_.empty()) {
      Question& last = script_.back();
      last.answer = next(last.probabilities, last.answer + 1);
      if (last.answer < last.probabilities.size()) return true;
      script_.pop_back();
    }
    return false;
  }

 private:
  static size_t next(const std::vector<double>& probabilities, size_t from) {
    while (from < probabilities.size() && !(probabilities[from] > 0)) ++from;
    return from;
  }
  size_t answer(const std::vector<double>& probabilities) {
    if (asked_ == script_.size()) script_.push_back({probabilities, next(probabilities, 0)});
    return script_[asked_++].answer;
  }

  const bool greedy_residual_;
  size_t asked_ = 0;
  std::vector<Question> script_;
};

std::string last_text;

template <class Body>
int64_t told(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    last_text = error.what();
    return -2;
  }
}

}  // namespace

extern "C" {

struct TestParams {
  double temperature, top_p, min_p, repetition, frequency, presence;
  int64_t top_k, min_tokens, seed, logprobs, rule;
  int64_t n_bias, n_banned, n_eos;
  const int64_t *bias_ids, *banned, *eos;
  const float* bias;
};

struct TestRound {
  int64_t vocab_size, prompt, count, stride, draft_count, allowed_words, columns, draft_stride, ids_stride, law;
  const int64_t *text, *drafts, *ids;
  const int32_t* parents;
  const uint32_t* allowed;
  const float *logits, *draft_logits;
};

using Outcome = void (*)(double probability, int64_t accepted, const int64_t* tokens, const int32_t* rows);

const char* error_text() { return last_text.c_str(); }

static SamplingParams params_of(const TestParams& from) {
  SamplingParams to;
  to.temperature = from.temperature;
  to.top_k = from.top_k;
  to.top_p = from.top_p;
  to.min_p = from.min_p;
  to.repetition_penalty = from.repetition;
  to.frequency_penalty = from.frequency;
  to.presence_penalty = from.presence;
  for (int64_t i = 0; i < from.n_bias; ++i) to.logit_bias.push_back({from.bias_ids[i], from.bias[i]});
  to.banned.assign(from.banned, from.banned + from.n_banned);
  to.eos.assign(from.eos, from.eos + from.n_eos);
  to.min_tokens = from.min_tokens;
  to.seed = from.seed;
  to.logprobs = from.logprobs;
  to.rule = static_cast<AcceptanceRule>(from.rule);
  return to;
}

static History history_of(const TestRound& from) {
  return {from.text, static_cast<size_t>(from.prompt), static_cast<size_t>(from.count)};
}

static RoundLogits round_of(const TestRound& from) {
  RoundLogits to;
  to.logits = from.logits;
  to.stride = static_cast<size_t>(from.stride);
  to.drafts = from.drafts;
  to.draft_count = static_cast<size_t>(from.draft_count);
  to.parents = from.parents;
  to.allowed = from.allowed;
  to.allowed_words = static_cast<size_t>(from.allowed_words);
  to.draft = {from.draft_logits, static_cast<size_t>(from.columns), static_cast<size_t>(from.draft_stride), from.ids,
              static_cast<size_t>(from.ids_stride), static_cast<DraftLaw>(from.law)};
  return to;
}

// As the engine: accepted, or -2 with error_text().
int64_t choose(const TestParams* params, const TestRound* round, int64_t* tokens, int32_t* rows, float* logprobs,
               int64_t* top_ids, float* top_logprobs) {
  return told([&] {
    Sampler sampler(round->vocab_size, static_cast<size_t>(round->draft_count) + 1);
    sampler.set(params_of(*params));
    const Sampled sampled = sampler.choose(history_of(*round), round_of(*round));
    const size_t count = sampled.accepted + 1;
    std::copy_n(sampled.tokens, count, tokens);
    std::copy_n(sampled.rows, count, rows);
    if (params->logprobs >= 0) {
      const size_t top = count * static_cast<size_t>(params->logprobs);
      std::copy_n(sampled.logprobs, count, logprobs);
      std::copy_n(sampled.top_ids, top, top_ids);
      std::copy_n(sampled.top_logprobs, top, top_logprobs);
    }
    return static_cast<int64_t>(sampled.accepted);
  });
}

// Calls `outcome` for each way that chance can decide a round.
int64_t outcomes(const TestParams* params, const TestRound* round, int32_t greedy_residual, Outcome outcome) {
  return told([&] {
    Rules rules(round->vocab_size, static_cast<size_t>(round->draft_count) + 1);
    rules.set(params_of(*params));
    std::vector<int64_t> tokens(static_cast<size_t>(round->draft_count) + 1);
    std::vector<int32_t> rows(tokens.size());
    ScriptedChance chance(greedy_residual != 0);
    do {
      chance.begin();
      const size_t accepted = rules.run(history_of(*round), round_of(*round), chance, tokens.data(), rows.data());
      outcome(chance.probability(), static_cast<int64_t>(accepted), tokens.data(), rows.data());
    } while (chance.advance());
    return int64_t{0};
  });
}

// The same for a draft that follows drafts[0..j): one token.
int64_t draft_outcomes(const TestParams* params, const TestRound* round, int64_t j, Outcome outcome) {
  return told([&] {
    Rules rules(round->vocab_size, static_cast<size_t>(j) + 1);
    rules.set(params_of(*params));
    ScriptedChance chance(false);
    const RoundLogits from = round_of(*round);
    do {
      chance.begin();
      const int64_t token = rules.draft(history_of(*round), from.drafts, static_cast<size_t>(j), from.draft,
                                        from.allowed, chance);
      outcome(chance.probability(), 0, &token, nullptr);
    } while (chance.advance());
    return int64_t{0};
  });
}

// Logits as the row holds them after the processors that change any.
void processed(const TestParams* params, const TestRound* round, float* into) {
  RowLogits row(round->vocab_size);
  row.set(params_of(*params));
  row.begin(history_of(*round));
  std::copy_n(row.process(round->logits, round->allowed), round->vocab_size, into);
}

// A row's law, f64 [vocab_size].
void law_of_row(const TestParams* params, const float* logits, int64_t vocab_size, double* into) {
  const SamplingParams wanted = params_of(*params);
  Filter filter(static_cast<size_t>(vocab_size));
  Law law;
  const float highest = *std::max_element(logits, logits + vocab_size);
  law.set(logits, static_cast<size_t>(vocab_size), highest, wanted.temperature, &filter.keep(logits, highest, wanted));
  for (size_t i = 0; i < law.ids.size(); ++i) into[law.ids[i]] = law.mass[i];
}

int64_t keyed_choose(int64_t seed, const float* logits, int64_t count, double temperature, uint64_t position) {
  KeyedChance chance;
  chance.begin(seed, 0);
  const auto best = std::max_element(logits, logits + count);
  return chance.choose({logits, static_cast<size_t>(count), *best, best - logits, temperature, nullptr}, position);
}

int32_t keyed_happens(int64_t seed, int64_t root, double probability, int64_t j) {
  KeyedChance chance;
  chance.begin(seed, static_cast<size_t>(root));
  return chance.happens(probability, static_cast<size_t>(j));
}

int64_t keyed_pick(int64_t seed, int64_t root, const double* mass, int64_t count, int64_t purpose, int64_t index) {
  KeyedChance chance;
  chance.begin(seed, static_cast<size_t>(root));
  Law law;
  for (int64_t i = 0; i < count; ++i) law.ids.push_back(static_cast<int32_t>(10 * i)), law.mass.push_back(mass[i]);
  return chance.pick(law, static_cast<Purpose>(purpose), static_cast<size_t>(index));
}

int64_t draw_at(const double* mass, int64_t count, double u) {
  Law law;
  for (int64_t i = 0; i < count; ++i) law.ids.push_back(static_cast<int32_t>(i)), law.mass.push_back(mass[i]);
  return draw(law, u);
}
}
