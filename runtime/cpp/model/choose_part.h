// Choosing a token from a part of a row: what the kernels and the engine's sampler share, so that both choose the same.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "noise.h"
#include "simd.h"

namespace specc {

constexpr int64_t kBlock = 512;     // logits whose maximum is taken at a stroke
constexpr int64_t kSampledBlock = 128;  // smaller, since the maximum then bounds its logits more tightly

using NativeI = Vector<int32_t, kNativeLanes>;

// The maximum of a block, and whether it holds a NaN: the same for any width of vectors.
inline float block_maximum(const float* logits, int64_t count, bool* any_nan) {
  const float lowest = -__builtin_inff();
  NativeF highest = NativeF{} + lowest;
  NativeI nans = {};
  int64_t v = 0;
  for (; v + kNativeLanes <= count; v += kNativeLanes) {
    const NativeF x = load<NativeF>(logits + v);
    highest = x > highest ? x : highest;
    nans |= x != x;
  }
  float top = lowest;
  for (; v < count; v++) {
    top = logits[v] > top ? logits[v] : top;
    if (logits[v] != logits[v]) *any_nan = true;
  }
  for (int i = 0; i < kNativeLanes; i++) {
    top = highest[i] > top ? highest[i] : top;
    if (nans[i] != 0) *any_nan = true;
  }
  return top;
}

struct Best {
  double value = -__builtin_inf();
  int64_t token = -1;  // none yet
  bool any_nan = false;

  // The order is total, so parts may meet their candidates in any order.
  void offer(double candidate, int64_t at) {
    if (token < 0 || candidate > value || (candidate == value && at < token)) {
      value = candidate;
      token = at;
    }
  }
};

// No less than logit * inverse, or than logit / temperature: covers the rounding of the division, the inverse and the
// products. A temperature so small that its inverse overflows rules nothing out.
inline double ceiling(double logit, double inverse) {
  if (logit == -__builtin_inf()) return logit;  // masked: most tokens, under a grammar
  const double x = logit * inverse;
  return std::isinf(inverse) ? inverse : x + std::fabs(x) * 1e-14;
}

inline Best greedy_part(const float* logits, int64_t begin, int64_t end) {
  Best best;
  float top = -__builtin_inff();
  int64_t top_block = -1;
  for (int64_t v = begin; v < end; v += kBlock) {
    const float highest = block_maximum(logits + v, std::min(kBlock, end - v), &best.any_nan);
    if (top_block < 0 || highest > top) {
      top = highest;
      top_block = v;
    }
  }
  for (int64_t v = top_block; top_block >= 0 && v < end; v++) {
    if (logits[v] == top) {
      best.offer(top, v);
      break;
    }
  }
  return best;
}

struct Sampling {
  const float* logits;
  double temperature;
  uint64_t key;
  double value(int64_t v) const {
    return static_cast<double>(logits[v]) / temperature + gumbel(noise_bits(key, static_cast<uint64_t>(v)));
  }
};

// Evaluating the noise of every token costs two logs each; nearly all are ruled out by bounds that cannot be wrong:
// a token is skipped only if even an upper bound of its value is below a value already met.
inline void sample_part(const Sampling& s, int64_t begin, int64_t end, Best& best) {
  const double inverse = 1 / s.temperature;
  for (int64_t block = begin; block < end; block += kSampledBlock) {
    const int64_t stop = std::min(block + kSampledBlock, end);
    bool any_nan = false;
    const float highest = block_maximum(s.logits + block, stop - block, &any_nan);
    // One integer comparison rules out most tokens of a block; few pass it to meet their own bound.
    const uint64_t least = least_bits(best.value - ceiling(highest, inverse));
    for (int64_t v = block; v < stop; v++) {
      const uint64_t bits = noise_bits(s.key, static_cast<uint64_t>(v));
      if (bits < least || ceiling(s.logits[v], inverse) + gumbel_bound(bits) < best.value) continue;
      best.offer(s.value(v), v);
    }
  }
}

}  // namespace specc
