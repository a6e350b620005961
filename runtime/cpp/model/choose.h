// Choosing a token from a row of logits.
#pragma once
#include <cstdint>

namespace specc {

struct Choice {
  int64_t token;   // lowest index among equals; 0 if every logit is NaN
  bool any_nan;
};

// argmax over logits[0, valid), NaNs left out. Parallel.
Choice choose_greedy(const float* logits, int64_t valid);

// argmax of logits[v] / temperature + G(seed, position, v), in double; any_nan as above. Parallel; temperature > 0.
Choice choose_sampled(const float* logits, int64_t valid, double temperature, uint64_t seed, uint64_t position);

}  // namespace specc
