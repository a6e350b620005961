// The processors that change logits: what a row holds when a temperature and filters meet it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "params.h"
#include "sampler.h"

namespace specc {

class RowLogits {
 public:
  explicit RowLogits(int64_t vocab_size);

  void set(const SamplingParams& params);

  // Forgets the drafts and counts the tokens of a text, which is borrowed. Counted anew each round: a text may have been
  // taken back and written on since, and a round costs far more.
  void begin(const History& history);
  // A draft that is now part of the text.
  void push(int64_t token);

  // Row `logits` f32 [vocab_size] for the token after the history and what was pushed: itself if nothing applies, else a
  // buffer that the next call writes over. `allowed`: a bit for each token, or null.
  const float* process(const float* logits, const uint32_t* allowed);
  // The same for logits f32 [columns] of a drafter whose columns stand for the target ids `ids`. `all`: every processor;
  // otherwise none.
  const float* process(const DraftLogits& draft, size_t row, const uint32_t* allowed, bool all);

 private:
  bool applies(const uint32_t* allowed) const;
  void apply(float* row, const uint32_t* allowed) const;

  const size_t vocab_size_;
  SamplingParams params_;
  size_t output_ = 0;          // tokens generated, with those pushed
  std::vector<int64_t> seen_;  // in prompt or output, each once
  std::vector<int32_t> in_text_, in_output_;
  std::vector<float> row_, draft_row_;
};

}  // namespace specc
