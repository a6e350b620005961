// AVX2: vpmaddubsw multiplies unsigned bytes with signed ones and adds pairs to 16 bits, which must not saturate.
//
// 8-bit weights are made signed again; their magnitudes meet activations that take the weights' signs, so a pair is at
// most 2 * 128 * 127 = 32512. A pair of 4 bits is at most 2 * 15 * 127 = 3810, and eight of them, a block, fit 16 bits.
#include "integers.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#define SPECC_TARGET __attribute__((target("avx2,fma,f16c")))

namespace specc {
namespace {

// Keeps a sum in its register: g++ would gather all products of a block first, and spill them.
SPECC_TARGET inline void settle(__m256i& sum) { asm("" : "+x"(sum)); }

SPECC_TARGET inline __m256i four_bytes(const int8_t* from) {
  int32_t four;
  std::memcpy(&four, from, 4);
  return _mm256_set1_epi32(four);
}

// Eight columns of a tile, a half: `weights` is their part of the block's first line. Sums of `Rows` rows fill registers.
template <int Bits, int Rows>
SPECC_TARGET inline void half_block(const char* weights, const QuantisedRows& x, __m256i (&dots)[Rows]) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) dots[r] = _mm256_setzero_si256();  // of 8 bits: 32-bit sums; of 4: 16-bit ones
#pragma GCC unroll 8
  for (int step = 0; step < Bits; step++) {
    __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + step * 64));
    if constexpr (Bits == 8) {
      w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
      const __m256i magnitudes = _mm256_abs_epi8(w);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; r++) {
        const __m256i four = four_bytes(x.integers + r * kBlock + step * 4);
        const __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(four, w));
        dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(pairs, ones));
        settle(dots[r]);
      }
    } else {
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
      w = _mm256_and_si256(w, _mm256_set1_epi8(15));
#pragma GCC unroll 8
      for (int r = 0; r < Rows; r++) {
        const int8_t* from = x.integers + r * kBlock + step * 8;
        dots[r] = _mm256_add_epi16(dots[r], _mm256_maddubs_epi16(w, four_bytes(from)));
        settle(dots[r]);
        dots[r] = _mm256_add_epi16(dots[r], _mm256_maddubs_epi16(high, four_bytes(from + 4)));
        settle(dots[r]);
      }
    }
  }
  if constexpr (Bits == 4) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++) {
      const __m256i start = _mm256_castps_si256(_mm256_broadcast_ss(reinterpret_cast<const float*>(x.starts + r)));
      dots[r] = _mm256_add_epi32(_mm256_madd_epi16(dots[r], ones), start);
    }
  }
}

template <int Bits, int Rows>
SPECC_TARGET void panel(const IntegerPanel& p) {
  const char* weights = p.weights;
  const int64_t lead = p.lead, segment_mask = p.segment_mask;
  const bool minimum = p.minimum;
  float* const y = p.y;
  QuantisedRows x = p.x;
  const uint16_t* line_of_scales = p.scales;
  for (int64_t at = p.first_block; at < p.first_block + p.blocks; at++) {
    if ((at & segment_mask) == 0) {
      line_of_scales = reinterpret_cast<const uint16_t*>(weights);
      if (lead != 0) __builtin_prefetch(weights + lead);
      weights += 64;
    }
    const uint16_t* scales = line_of_scales + (at >> p.group_shift & p.pair_mask) * 16;
    for (int c = 0; c < 2; c++) {
      if (lead != 0) {
#pragma GCC unroll 4
        for (int line = 0; line < Bits / 2; line++) __builtin_prefetch(weights + lead + (c * Bits / 2 + line) * 64);
      }
      __m256i dots[Rows];
      half_block<Bits, Rows>(weights + c * 32, x, dots);
      const uint16_t* half = scales + c * 8;
      const __m256 d = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half)));
#pragma GCC unroll 8
      for (int r = 0; r < Rows; r++) {
        float* to = y + (r * 2 + c) * 8;
        const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[r]), _mm256_broadcast_ss(x.scales + r));
        _mm256_storeu_ps(to, _mm256_fmadd_ps(scaled, d, _mm256_loadu_ps(to)));
      }
      if (!minimum) continue;
      const __m256 m = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half + 16)));
#pragma GCC unroll 8
      for (int r = 0; r < Rows; r++) {
        float* to = y + (r * 2 + c) * 8;
        _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_broadcast_ss(x.scaled_sums + r), m, _mm256_loadu_ps(to)));
      }
    }
    weights += Bits * 64;
    x.next_block();
  }
}

template <int Bits, int... Rows>
IntegerKernel by_rows(int64_t rows) {
  constexpr IntegerKernel kTable[] = {nullptr, panel<Bits, Rows>...};
  return kTable[rows];
}

IntegerKernel find(int bits, int64_t rows) {
  return bits == 8 ? by_rows<8, 1, 2, 3, 4, 5, 6, 7, 8>(rows) : by_rows<4, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
}

bool runs_here() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

}  // namespace

const IntegerKernels kIntegersAvx2 = {"avx2", runs_here, kPanelRows, find, nullptr};

}  // namespace specc
#endif
