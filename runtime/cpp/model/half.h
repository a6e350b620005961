// Half-precision floats of caches: widened exactly, rounded to nearest even. A NaN stays one.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "simd.h"

namespace specc {

inline uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float bits_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline float widen_bf16(uint16_t x) { return bits_float(static_cast<uint32_t>(x) << 16); }
inline uint16_t round_bf16(float x) {
  if (x != x) return 0x7FC0;
  const uint32_t bits = float_bits(x);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

#if defined(__F16C__)
inline float widen_f16(uint16_t x) { return _cvtsh_ss(x); }
inline uint16_t round_f16(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
#else
inline float widen_f16(uint16_t x) {
  __fp16 half;
  std::memcpy(&half, &x, sizeof half);
  return half;
}
inline uint16_t round_f16(float x) {
  const __fp16 half = x;
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}
#endif

// `count` neighbours widened.
inline void widen_f16(float* to, const uint16_t* from, int64_t count) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= count; i += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(0xFFFF, halves));
  }
#elif defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
#endif
  for (; i < count; i++) to[i] = widen_f16(from[i]);
}
inline void widen_bf16(float* to, const uint16_t* from, int64_t count) {
  for (int64_t i = 0; i < count; i++) to[i] = widen_bf16(from[i]);  // the compiler makes vectors of this
}

}  // namespace specc
