// The best tokens of a row of logits, and how likely each is: what token trees grow from.
#pragma once
#include <cstdint>

namespace specc {

struct Candidate {
  int64_t token;
  double value;  // the logarithm of its probability
};

// The `count` best of logits[0, valid), best first; the lowest id wins a tie, NaN counts as -inf. Probabilities are
// softmax over all. count <= valid.
void best_tokens(const float* logits, int64_t valid, int64_t count, Candidate* best);

// By logits / temperature plus the noise of `position` (choose.h); probabilities are softmax of that over the `count`.
void best_sampled(const float* logits, int64_t valid, int64_t count, double temperature, uint64_t seed,
                  uint64_t position, Candidate* best);

}  // namespace specc
