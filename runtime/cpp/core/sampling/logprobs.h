// Log probabilities that a caller sees: those of the target's own law at temperature 1, before any processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace specc {

// log of the sum of exp(logits[0, vocab_size)).
double log_sum(const float* logits, size_t vocab_size);

// The `n` best of logits[0, vocab_size), best first, of equals the lowest id first. `heap` is scratch and keeps its memory.
void best_of(const float* logits, size_t vocab_size, size_t n, std::vector<std::pair<float, int64_t>>& heap);

}  // namespace specc
