#include "sampler.h"

#include <utility>
#include <vector>

#include "chance.h"
#include "logprobs.h"
#include "rules.h"

namespace specc {

struct Sampler::Impl {
  Impl(int64_t vocab, size_t most) : vocab_size(static_cast<size_t>(vocab)), rules(vocab, most), tokens(most), rows(most) {}

  size_t top() const { return static_cast<size_t>(rules.params().logprobs); }
  void report(const RoundLogits& round, size_t count);

  const size_t vocab_size;
  Rules rules;
  KeyedChance chance;
  std::vector<int64_t> tokens, top_ids;
  std::vector<int32_t> rows;
  std::vector<float> logprobs, top_logprobs;
  std::vector<std::pair<float, int64_t>> heap;
};

void Sampler::Impl::report(const RoundLogits& round, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const float* logits = round.logits + static_cast<size_t>(rows[i]) * round.stride;
    const double whole = log_sum(logits, vocab_size);
    logprobs[i] = static_cast<float>(logits[tokens[i]] - whole);
    best_of(logits, vocab_size, top(), heap);
    for (size_t j = 0; j < heap.size(); ++j) {
      top_ids[i * top() + j] = heap[j].second;
      top_logprobs[i * top() + j] = static_cast<float>(heap[j].first - whole);
    }
  }
}

Sampler::Sampler(int64_t vocab_size, size_t max_rows) : impl_(std::make_unique<Impl>(vocab_size, max_rows)) {}
Sampler::~Sampler() = default;

void Sampler::set(const SamplingParams& params) {
  impl_->rules.set(params);
  if (params.logprobs < 0) return;
  impl_->logprobs.resize(impl_->rows.size());
  impl_->top_ids.resize(impl_->rows.size() * impl_->top());
  impl_->top_logprobs.resize(impl_->top_ids.size());
  impl_->heap.reserve(impl_->top());
}

const SamplingParams& Sampler::params() const { return impl_->rules.params(); }

Sampled Sampler::choose(const History& history, const RoundLogits& round) {
  Impl& impl = *impl_;
  impl.chance.begin(params().seed, history.count - 1);
  Sampled sampled;
  sampled.accepted = impl.rules.run(history, round, impl.chance, impl.tokens.data(), impl.rows.data());
  sampled.tokens = impl.tokens.data();
  sampled.rows = impl.rows.data();
  if (params().logprobs < 0) return sampled;
  impl.report(round, sampled.accepted + 1);
  sampled.logprobs = impl.logprobs.data();
  sampled.top_ids = impl.top_ids.data();
  sampled.top_logprobs = impl.top_logprobs.data();
  return sampled;
}

int64_t Sampler::draft(const History& history, const int64_t* drafts, size_t j, const DraftLogits& draft,
                       const uint32_t* allowed) {
  impl_->chance.begin(params().seed, history.count - 1);
  return impl_->rules.draft(history, drafts, j, draft, allowed, impl_->chance);
}

}  // namespace specc
