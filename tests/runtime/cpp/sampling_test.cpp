// The sampler's memory: nothing is allocated once rounds go on, whatever they ask for. What it computes is tested from
// Python (tests/runtime/test_sampling.py).

#include "../../../runtime/cpp/core/sampling/sampler.h"

#include <algorithm>
#include <random>
#include <vector>

#include "check.h"
#include "tests.h"

using namespace specc;

namespace {

constexpr size_t kVocab = 101, kDrafts = 4, kWords = 4;  // not a multiple of a mask's word

struct Data {
  std::vector<float> logits = std::vector<float>((kDrafts + 1) * kVocab), draft_logits = std::vector<float>(kDrafts * 7);
  std::vector<int64_t> text = {1, 2, 3, 2, 5}, drafts = std::vector<int64_t>(kDrafts);
  std::vector<int64_t> ids = {0, 9, 33, 64, 98, 99, 100};
  std::vector<int32_t> parents = {0, 0, 1, 3};
  std::vector<uint32_t> allowed = std::vector<uint32_t>((kDrafts + 1) * kWords, 0xfffffff1u);
};

void check_rounds(Sampler& sampler, Data& data, bool tree, bool masked) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  long before = 0;
  for (int trial = 0; trial < 50; ++trial) {
    if (trial == 1) before = allocations_so_far();
    for (float& each : data.logits) each = normal(random);
    for (float& each : data.draft_logits) each = normal(random);
    for (int64_t& each : data.drafts) each = data.ids[random() % data.ids.size()];
    RoundLogits round;
    round.logits = data.logits.data();
    round.stride = kVocab;
    round.drafts = data.drafts.data();
    round.draft_count = kDrafts;
    if (tree) round.parents = data.parents.data();
    if (masked) round.allowed = data.allowed.data();
    round.allowed_words = kWords;
    round.draft = {data.draft_logits.data(), 7, 7, data.ids.data(), 0, DraftLaw::kProcessed};
    const History history{data.text.data(), 2, data.text.size()};
    const Sampled sampled = sampler.choose(history, round);
    CHECK(sampled.accepted <= kDrafts);
    for (size_t i = 0; i <= sampled.accepted; ++i) {
      CHECK(sampled.tokens[i] >= 0 && sampled.tokens[i] < static_cast<int64_t>(kVocab));
      CHECK(sampled.rows[i] == 0 || i > 0);
    }
    const int64_t drawn = sampler.draft(history, data.drafts.data(), 1, round.draft, round.allowed);
    CHECK(std::find(data.ids.begin(), data.ids.end(), drawn) != data.ids.end());
  }
  CHECK_EQ(allocations_so_far(), before);
}

}  // namespace

void sampling_test() {
  Data data;
  for (const auto rule : {AcceptanceRule::kMatch, AcceptanceRule::kRejection, AcceptanceRule::kBlock}) {
    for (const double temperature : {0.0, 0.9}) {
      for (const bool shaped : {false, true}) {
        Sampler sampler(kVocab, kDrafts + 1);
        SamplingParams params;
        params.rule = rule;
        params.temperature = temperature;
        if (shaped) {
          params.top_k = 20;
          params.top_p = 0.9;
          params.min_p = 0.01;
          params.repetition_penalty = 1.2;
          params.frequency_penalty = 0.3;
          params.logit_bias = {{98, 2.0f}};
          params.banned = {5};
          params.min_tokens = 9;
          params.eos = {7};
          params.logprobs = 3;
        }
        sampler.set(params);
        check_rounds(sampler, data, false, shaped);
        if (rule != AcceptanceRule::kBlock) check_rounds(sampler, data, true, shaped);
      }
    }
  }
}
