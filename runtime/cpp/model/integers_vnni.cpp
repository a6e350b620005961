// AVX-512 with VNNI: vpdpbusd multiplies four bytes of a column with four of a row, unsigned by signed, and adds.
// 8-bit weights are stored with 128 added, 4-bit ones are not negative; what that adds is taken off by the first addend.
#include "integers.h"

// GCC's own header leaves what a mask of ones never reads (gcc.gnu.org/PR105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#define SPECC_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

namespace specc {
namespace {

template <int Bits, int Rows>
SPECC_TARGET void panel(const IntegerPanel& p) {
  constexpr int kSteps = Bits;                 // cache lines of a block
  constexpr int kColumns = Bits == 8 ? 4 : 8;  // of a row that meet one line
  __m512 y[Rows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) y[r] = _mm512_loadu_ps(p.y + r * 16);
  const char* weights = p.weights;
  QuantisedRows x = p.x;
  const uint16_t* line_of_scales = p.scales;
  for (int64_t at = p.first_block; at < p.first_block + p.blocks; at++) {
    if ((at & p.segment_mask) == 0) {
      line_of_scales = reinterpret_cast<const uint16_t*>(weights);
      if (p.lead != 0) __builtin_prefetch(weights + p.lead);
      weights += 64;
    }
    __m512i dots[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++) dots[r] = _mm512_set1_epi32(x.starts[r]);
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; step++) {
      __m512i w = _mm512_loadu_si512(weights + step * 64), high;
      if constexpr (Bits == 4) {
        high = _mm512_and_si512(_mm512_srli_epi16(w, 4), _mm512_set1_epi8(15));
        w = _mm512_and_si512(w, _mm512_set1_epi8(15));
      }
#pragma GCC unroll 8
      for (int r = 0; r < Rows; r++) {
        int32_t four;
        std::memcpy(&four, x.integers + r * kBlock + step * kColumns, 4);
        dots[r] = _mm512_dpbusd_epi32(dots[r], w, _mm512_set1_epi32(four));
        if constexpr (Bits == 4) {
          std::memcpy(&four, x.integers + r * kBlock + step * kColumns + 4, 4);
          dots[r] = _mm512_dpbusd_epi32(dots[r], high, _mm512_set1_epi32(four));
        }
      }
    }
    if (p.lead != 0) {
#pragma GCC unroll 8
      for (int line = 0; line < kSteps; line++) __builtin_prefetch(weights + p.lead + line * 64);
    }
    const uint16_t* scales = line_of_scales + (at >> p.group_shift & p.pair_mask) * 16;
    const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales)));
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++) {
      const __m512 scale = _mm512_set1_ps(x.scales[r]);
      y[r] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dots[r]), scale), d, y[r]);
    }
    if (p.minimum) {
      const __m512 m = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(scales + 16)));
#pragma GCC unroll 8
      for (int r = 0; r < Rows; r++) y[r] = _mm512_fmadd_ps(_mm512_set1_ps(x.scaled_sums[r]), m, y[r]);
    }
    weights += kSteps * 64;
    x.next_block();
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) _mm512_storeu_ps(p.y + r * 16, y[r]);
}

// Two tiles at once: a row's four bytes are loaded for both, since loads are what bounds one tile. Registers hold 16 dot
// products, memory the sums.
template <int Bits, int Rows>
SPECC_TARGET void pair(const IntegerPanel& p) {
  constexpr int kSteps = Bits;
  constexpr int kColumns = Bits == 8 ? 4 : 8;
  const int64_t stride = p.tile_stride;
  const bool minimum = p.minimum;
  const char* weights = p.weights;
  float* const y = p.y;
  QuantisedRows x = p.x;
  const char* line_of_scales = reinterpret_cast<const char*>(p.scales);
  for (int64_t at = p.first_block; at < p.first_block + p.blocks; at++) {
    const bool leads = at >= p.lead_begin && at < p.lead_end;
    if ((at & p.segment_mask) == 0) {
      line_of_scales = weights;
      if (leads) {
        __builtin_prefetch(weights + p.lead);
        __builtin_prefetch(weights + p.lead + stride);
      }
      weights += 64;
    }
    __m512i dots[2][Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++) dots[0][r] = dots[1][r] = _mm512_set1_epi32(x.starts[r]);
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; step++) {
      __m512i w[2], high[2];
#pragma GCC unroll 2
      for (int t = 0; t < 2; t++) {
        w[t] = _mm512_loadu_si512(weights + t * stride + step * 64);
        if constexpr (Bits == 4) {
          high[t] = _mm512_and_si512(_mm512_srli_epi16(w[t], 4), _mm512_set1_epi8(15));
          w[t] = _mm512_and_si512(w[t], _mm512_set1_epi8(15));
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < Rows; r++) {
        int32_t four;
        std::memcpy(&four, x.integers + r * kBlock + step * kColumns, 4);
        dots[0][r] = _mm512_dpbusd_epi32(dots[0][r], w[0], _mm512_set1_epi32(four));
        dots[1][r] = _mm512_dpbusd_epi32(dots[1][r], w[1], _mm512_set1_epi32(four));
        if constexpr (Bits == 4) {
          std::memcpy(&four, x.integers + r * kBlock + step * kColumns + 4, 4);
          dots[0][r] = _mm512_dpbusd_epi32(dots[0][r], high[0], _mm512_set1_epi32(four));
          dots[1][r] = _mm512_dpbusd_epi32(dots[1][r], high[1], _mm512_set1_epi32(four));
        }
      }
    }
    const int64_t scales = (at >> p.group_shift & p.pair_mask) * 32;
#pragma GCC unroll 2
    for (int t = 0; t < 2; t++) {
      if (leads) {
#pragma GCC unroll 8
        for (int line = 0; line < kSteps; line++) __builtin_prefetch(weights + p.lead + t * stride + line * 64);
      }
      const auto* half = reinterpret_cast<const __m256i*>(line_of_scales + t * stride + scales);
      const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256(half));
      const __m512 m = minimum ? _mm512_cvtph_ps(_mm256_loadu_si256(half + 1)) : d;
#pragma GCC unroll 8
      for (int r = 0; r < Rows; r++) {
        float* to = y + t * p.y_stride + r * 16;
        const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(dots[t][r]), _mm512_set1_ps(x.scales[r]));
        __m512 sum = _mm512_fmadd_ps(scaled, d, _mm512_loadu_ps(to));
        if (minimum) sum = _mm512_fmadd_ps(_mm512_set1_ps(x.scaled_sums[r]), m, sum);
        _mm512_storeu_ps(to, sum);
      }
    }
    weights += kSteps * 64;
    x.next_block();
  }
}

template <int Bits, int... Rows>
IntegerKernel pair_by_rows(int64_t rows) {
  constexpr IntegerKernel kTable[] = {nullptr, pair<Bits, Rows>...};
  return kTable[rows];
}

IntegerKernel find_pair(int bits, int64_t rows) {
  return bits == 8 ? pair_by_rows<8, 1, 2, 3, 4, 5, 6, 7, 8>(rows) : pair_by_rows<4, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
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
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
}

}  // namespace

const IntegerKernels kIntegersVnni = {"avx512vnni", runs_here, kPanelRows, find, find_pair};

}  // namespace specc
#endif
