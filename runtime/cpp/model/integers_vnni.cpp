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

template <int Bits, int Rows, int Tiles>
SPECC_TARGET void panel(const IntegerPanel& p) {
  constexpr int kSteps = Bits;                 // cache lines of a block and tile
  constexpr int kColumns = Bits == 8 ? 4 : 8;  // of a row that meet one line
  __m512 y[Rows][Tiles];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; t++) y[r][t] = _mm512_loadu_ps(p.y + (r * Tiles + t) * 16);
  }
  const int offset = p.minimum ? 0 : Bits == 8 ? -128 : -8;
  const char* weights = p.weights;
  const int8_t* x = p.x.integers(0) + p.first_block * 32;
  const int64_t stride = p.x.stride;
  const char* ahead = p.ahead;
  for (int64_t block = 0; block < p.blocks; block++) {
    __m512i dots[Rows][Tiles];
    const int32_t* sums = p.x.sums(0) + p.first_block + block;
#pragma GCC unroll 8
    for (int r = 0; r < Rows; r++) {
      const int32_t sum = *reinterpret_cast<const int32_t*>(reinterpret_cast<const char*>(sums) + r * stride);
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; t++) dots[r][t] = _mm512_set1_epi32(sum * offset);
    }
#pragma GCC unroll 8
    for (int step = 0; step < kSteps; step++) {
      __m512i w[Tiles], high[Tiles];
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; t++) {
        w[t] = _mm512_loadu_si512(weights + t * p.tile_stride + step * 64);
        if constexpr (Bits == 4) {
          high[t] = _mm512_and_si512(_mm512_srli_epi16(w[t], 4), _mm512_set1_epi8(15));
          w[t] = _mm512_and_si512(w[t], _mm512_set1_epi8(15));
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < Rows; r++) {
        int32_t four[2];
        std::memcpy(four, x + r * stride + step * kColumns, kColumns);
#pragma GCC unroll 4
        for (int t = 0; t < Tiles; t++) dots[r][t] = _mm512_dpbusd_epi32(dots[r][t], w[t], _mm512_set1_epi32(four[0]));
        if constexpr (Bits == 4) {
#pragma GCC unroll 4
          for (int t = 0; t < Tiles; t++) {
            dots[r][t] = _mm512_dpbusd_epi32(dots[r][t], high[t], _mm512_set1_epi32(four[1]));
          }
        }
      }
    }
    for (int64_t line = 0; line < p.ahead_lines; line++) {
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; t++) __builtin_prefetch(ahead + t * p.tile_stride + line * 64);
    }
    const uint16_t* scales = p.scales + (block >> p.group_shift) * p.scale_stride;
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; t++) {
      const char* tile = reinterpret_cast<const char*>(scales) + t * p.tile_stride;
      const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile)));
#pragma GCC unroll 8
      for (int r = 0; r < Rows; r++) {
        const float scale = p.x.scales(r)[p.first_block + block];
        y[r][t] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(dots[r][t]), _mm512_set1_ps(scale)), d, y[r][t]);
      }
      if (!p.minimum) continue;
      const __m512 m = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + 32)));
#pragma GCC unroll 8
      for (int r = 0; r < Rows; r++) {
        y[r][t] = _mm512_fmadd_ps(_mm512_set1_ps(p.x.scaled_sums(r)[p.first_block + block]), m, y[r][t]);
      }
    }
    weights += kSteps * 64;
    ahead += p.ahead_lines * 64;
    x += 32;
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; t++) _mm512_storeu_ps(p.y + (r * Tiles + t) * 16, y[r][t]);
  }
}

template <int Bits, int Tiles, int... Rows>
IntegerKernel by_rows(int64_t rows) {
  constexpr IntegerKernel kTable[] = {nullptr, panel<Bits, Rows, Tiles>...};
  return kTable[rows];
}

template <int Bits>
IntegerKernel find_for(int64_t rows, int tiles) {
  if (tiles == 4) return panel<Bits, 1, 4>;
  return tiles == 2 ? by_rows<Bits, 2, 1, 2, 3, 4>(rows) : by_rows<Bits, 1, 1, 2, 3, 4, 5, 6, 7, 8>(rows);
}

// Enough independent chains to hide the latency of vpdpbusd, within 32 registers.
int tiles_for(int64_t rows) { return rows == 1 ? 4 : rows <= 4 ? 2 : 1; }

IntegerKernel find(int bits, int64_t rows, int tiles) {
  return bits == 8 ? find_for<8>(rows, tiles) : find_for<4>(rows, tiles);
}

bool runs_here() {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
}

}  // namespace

const IntegerKernels kIntegersVnni = {"avx512vnni", runs_here, 8, tiles_for, find};

}  // namespace specc
#endif
