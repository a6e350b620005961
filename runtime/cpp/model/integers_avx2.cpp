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

template <int Bits, int Rows>
SPECC_TARGET void panel(const IntegerPanel& p) {
  constexpr int kSteps = Bits;                 // cache lines of a block
  constexpr int kColumns = Bits == 8 ? 4 : 8;  // of a row that meet one line
  constexpr int kHalves = 2;                   // of a tile's columns
  const __m256i ones = _mm256_set1_epi16(1);
  const int offset = p.minimum ? 0 : -8;
  const char* weights = p.weights;
  const int8_t* x = p.x.integers(0) + p.first_block * 32;
  const int64_t stride = p.x.stride;
  const uint16_t* line_of_scales = p.scales;
  for (int64_t at = p.first_block; at < p.first_block + p.blocks; at++) {
    if ((at & p.segment_mask) == 0) {
      line_of_scales = reinterpret_cast<const uint16_t*>(weights);
      if (p.lead != 0) __builtin_prefetch(weights + p.lead);
      weights += 64;
    }
    __m256i dots[Rows][kHalves];  // of 8 bits: 32-bit sums; of 4: 16-bit ones
#pragma GCC unroll 4
    for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 4
      for (int c = 0; c < kHalves; c++) dots[r][c] = _mm256_setzero_si256();
    }
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; step++) {
#pragma GCC unroll 4
      for (int c = 0; c < kHalves; c++) {
        const char* from = weights + step * 64 + c * 32;
        __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        if constexpr (Bits == 8) {
          w = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
          const __m256i magnitudes = _mm256_abs_epi8(w);
#pragma GCC unroll 4
          for (int r = 0; r < Rows; r++) {
            int32_t four;
            std::memcpy(&four, x + r * stride + step * kColumns, 4);
            const __m256i pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(_mm256_set1_epi32(four), w));
            dots[r][c] = _mm256_add_epi32(dots[r][c], _mm256_madd_epi16(pairs, ones));
          }
        } else {
          const __m256i high = _mm256_and_si256(_mm256_srli_epi16(w, 4), _mm256_set1_epi8(15));
          w = _mm256_and_si256(w, _mm256_set1_epi8(15));
#pragma GCC unroll 4
          for (int r = 0; r < Rows; r++) {
            int32_t four, next;
            std::memcpy(&four, x + r * stride + step * kColumns, 4);
            std::memcpy(&next, x + r * stride + step * kColumns + 4, 4);
            dots[r][c] = _mm256_add_epi16(dots[r][c], _mm256_maddubs_epi16(w, _mm256_set1_epi32(four)));
            dots[r][c] = _mm256_add_epi16(dots[r][c], _mm256_maddubs_epi16(high, _mm256_set1_epi32(next)));
          }
        }
      }
    }
    if (p.lead != 0) {
#pragma GCC unroll 8
      for (int line = 0; line < kSteps; line++) __builtin_prefetch(weights + p.lead + line * 64);
    }
    const uint16_t* scales = line_of_scales + (at >> p.group_shift & p.pair_mask) * 16;
#pragma GCC unroll 4
    for (int c = 0; c < kHalves; c++) {
      const uint16_t* half = scales + c * 8;
      const __m256 d = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half)));
      const __m256 m = p.minimum ? _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(half + 16)))
                                 : _mm256_setzero_ps();
#pragma GCC unroll 4
      for (int r = 0; r < Rows; r++) {
        if constexpr (Bits == 4) {
          const __m256i start = _mm256_set1_epi32(p.x.sums(r)[at] * offset);
          dots[r][c] = _mm256_add_epi32(_mm256_madd_epi16(dots[r][c], ones), start);
        }
        float* to = p.y + (r * kHalves + c) * 8;
        const __m256 scale = _mm256_set1_ps(p.x.scales(r)[at]);
        __m256 y = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(dots[r][c]), scale), d, _mm256_loadu_ps(to));
        if (p.minimum) y = _mm256_fmadd_ps(_mm256_set1_ps(p.x.scaled_sums(r)[at]), m, y);
        _mm256_storeu_ps(to, y);
      }
    }
    weights += kSteps * 64;
    x += 32;
  }
}

template <int Bits, int... Rows>
IntegerKernel by_rows(int64_t rows) {
  constexpr IntegerKernel kTable[] = {nullptr, panel<Bits, Rows>...};
  return kTable[rows];
}

IntegerKernel find(int bits, int64_t rows) {
  return bits == 8 ? by_rows<8, 1, 2, 3, 4>(rows) : by_rows<4, 1, 2, 3, 4>(rows);
}

bool runs_here() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

}  // namespace

const IntegerKernels kIntegersAvx2 = {"avx2", runs_here, 4, find};

}  // namespace specc
#endif
