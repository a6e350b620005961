// The law of a row: which tokens it may be followed by, and with what probability.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "params.h"

namespace specc {

// min_p, top_k, top_p, in this order. Finds the tokens that are left, and keeps its buffers.
class Filter {
 public:
  explicit Filter(size_t vocab_size) : vocab_size_(vocab_size) {}
  void reserve();

  // Ids of logits f32 [vocab_size], ascending; at least one. Of equals at top_p's border the lower ids stay. `highest`
  // is the maximum of the row, above -inf.
  const std::vector<int32_t>& keep(const float* logits, float highest, const SamplingParams& params);

 private:
  void keep_top_k(const float* logits, float highest, const SamplingParams& params);
  void keep_top_p(const float* logits, float highest, const SamplingParams& params);

  size_t vocab_size_;
  std::vector<int32_t> ids_, order_;
  std::vector<float> heap_;
  std::vector<double> mass_;
};

// Unnormalised probability of a logit: 1 for the highest.
double weight(float logit, float highest, double temperature);

struct Law {
  std::vector<int32_t> ids;  // ascending
  std::vector<double> mass;  // of each; sums to 1 unless said otherwise

  void reserve(size_t vocab_size);
  // softmax(logits / temperature) over `kept`, or over all of [0, vocab_size) where that is null.
  void set(const float* logits, size_t vocab_size, float highest, double temperature, const std::vector<int32_t>* kept);
  double of(int64_t id) const;  // 0 for what is not in it
  // Scales to a sum of 1; false, and nothing changes, if there is no mass.
  bool normalise();
};

// The first id whose mass and that of all before it exceeds u of the whole, 0 < u < 1.
int64_t draw(const Law& law, double u);

}  // namespace specc
