// What one query's arithmetic is made of. Every order of sums here is part of what cached_attention is, the same for all
// ISAs: 16 virtual lanes, in as many registers as the machine needs for them.
#pragma once
#include <algorithm>

#include "simd.h"
#include "vecmath.h"

namespace specc {

constexpr int64_t kLanes = 16;
constexpr int64_t kTileKeys = 8;
constexpr int kParts = kLanes / kNativeLanes;

// Sixteen lanes folded once: lane l is (l) + (l + 8).
[[gnu::always_inline]] inline F8 fold(const NativeF (&lanes)[kParts]) {
  float all[kLanes];
  for (int i = 0; i < kParts; i++) store(all + i * kNativeLanes, lanes[i]);
  return load<F8>(all) + load<F8>(all + 8);
}

// The sums of eight keys' eight lanes each, by sum_lanes of all at once: fold halves, then transpose and add.
[[gnu::always_inline]] inline F8 eight_sums(const F8* lanes) {
  F8 fours[4];  // lanes 0..3: key 2i; lanes 4..7: key 2i+1
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    fours[i] = __builtin_shufflevector(lanes[2 * i], lanes[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11) +
               __builtin_shufflevector(lanes[2 * i], lanes[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  F8 twos[2];  // keys 4i, 4i+2 | 4i+1, 4i+3, two lanes each
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    twos[i] = __builtin_shufflevector(fours[2 * i], fours[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
              __builtin_shufflevector(fours[2 * i], fours[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  const F8 total = __builtin_shufflevector(twos[0], twos[1], 0, 2, 8, 10, 4, 6, 12, 14) +
                   __builtin_shufflevector(twos[0], twos[1], 1, 3, 9, 11, 5, 7, 13, 15);  // keys 0 2 4 6 1 3 5 7
  return __builtin_shufflevector(total, total, 0, 4, 1, 5, 2, 6, 3, 7);
}

#if defined(__AVX512F__)
// The same from sixteen lanes, in the same order.
[[gnu::always_inline]] inline F8 eight_sums(const F16* lanes) {
  F16 eights[4];  // keys 2i and 2i+1
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const F16 &a = lanes[2 * i], &b = lanes[2 * i + 1];
    eights[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
  F16 fours[2];  // keys 4i to 4i+3
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    const F16 &a = eights[2 * i], &b = eights[2 * i + 1];
    fours[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
               __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  }
  const F16 &a = fours[0], &b = fours[1];
  const F16 twos = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
                   __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  return __builtin_shufflevector(twos, twos, 0, 4, 8, 12, 2, 6, 10, 14) +
         __builtin_shufflevector(twos, twos, 1, 5, 9, 13, 3, 7, 11, 15);
}

// scores[n][i] = <q[n], keys[i]> for eight keys of `size`, a multiple of 16: lane l sums d = l, l + 16, ...; then `fold`,
// then sum_lanes. A key that is loaded serves all queries, whose sums stay in registers.
template <int Queries>
[[gnu::always_inline]] inline void eight_scores(float* const* scores, const float* const* q, const float* const* keys,
                                                int64_t size) {
  F16 lanes[Queries][8] = {};
  for (int64_t d = 0; d < size; d += kLanes) {
    F16 part[Queries];
#pragma GCC unroll 4
    for (int n = 0; n < Queries; n++) part[n] = load<F16>(q[n] + d);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
      const F16 key = load<F16>(keys[i] + d);
#pragma GCC unroll 4
      for (int n = 0; n < Queries; n++) lanes[n][i] += part[n] * key;
    }
  }
#pragma GCC unroll 4
  for (int n = 0; n < Queries; n++) store(scores[n], eight_sums(lanes[n]));
}
#else
// As above, a register's lanes of all keys at a time: eight sums and a query's part are what registers hold.
template <int Queries>
[[gnu::always_inline]] inline void eight_scores(float* const* scores, const float* const* q, const float* const* keys,
                                                int64_t size) {
#pragma GCC unroll 4
  for (int n = 0; n < Queries; n++) {
    NativeF parts[8][kParts];
#pragma GCC unroll 4
    for (int p = 0; p < kParts; p++) {
      NativeF lanes[8] = {};
      for (int64_t d = p * kNativeLanes; d < size; d += kLanes) {
        const NativeF part = load<NativeF>(q[n] + d);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) lanes[i] += part * load<NativeF>(keys[i] + d);
      }
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) parts[i][p] = lanes[i];
    }
    F8 eights[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
      if constexpr (kParts == 2) {
        eights[i] = parts[i][0] + parts[i][1];
      } else {
        eights[i] = fold(parts[i]);
      }
    }
    store(scores[n], eight_sums(eights));
  }
}
#endif

constexpr int64_t kMostScored = 3;

// Of one head size, so that the usual ones have loops without ends.
[[gnu::always_inline]] inline void sized_scores(float* const* scores, const float* const* q, int64_t queries,
                                                const float* const* keys, int64_t size) {
  switch (queries) {
    case 1: return eight_scores<1>(scores, q, keys, size);
    case 2: return eight_scores<2>(scores, q, keys, size);
    default: return eight_scores<3>(scores, q, keys, size);
  }
}

inline void eight_scores(float* const* scores, const float* const* q, int64_t queries, const float* const* keys,
                         int64_t size) {
  switch (size) {
    case 64: return sized_scores(scores, q, queries, keys, 64);
    case 128: return sized_scores(scores, q, queries, keys, 128);
    default: return sized_scores(scores, q, queries, keys, size);
  }
}

constexpr int kTileParts = kParts == 1 ? 2 : kParts;  // two registers at least: a query's float is loaded once for both
constexpr int64_t kTileWidth = kTileParts * kNativeLanes;

// kTileWidth keys, one to a lane: tile[d][i] = keys[i][d] for d < size, a multiple of 16. For blocks of many queries: they
// then need no shuffling of their own.
inline void transpose_keys(float* tile, const float* const* keys, int64_t size) {
  for (int64_t half = 0; half < kTileWidth; half += 8) {
    for (int64_t d = 0; d < size; d += 4) {
      F8 rows[4];  // four columns of keys i and i + 4
#pragma GCC unroll 4
      for (int i = 0; i < 4; i++) {
        rows[i] = __builtin_shufflevector(load<F4>(keys[half + i] + d), load<F4>(keys[half + i + 4] + d), 0, 1, 2, 3, 4, 5,
                                          6, 7);
      }
      const F8 a = __builtin_shufflevector(rows[0], rows[1], 0, 8, 1, 9, 4, 12, 5, 13);
      const F8 b = __builtin_shufflevector(rows[2], rows[3], 0, 8, 1, 9, 4, 12, 5, 13);
      const F8 c = __builtin_shufflevector(rows[0], rows[1], 2, 10, 3, 11, 6, 14, 7, 15);
      const F8 e = __builtin_shufflevector(rows[2], rows[3], 2, 10, 3, 11, 6, 14, 7, 15);
      float* to = tile + d * kTileWidth + half;
      store(to, __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13));
      store(to + kTileWidth, __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15));
      store(to + 2 * kTileWidth, __builtin_shufflevector(c, e, 0, 1, 8, 9, 4, 5, 12, 13));
      store(to + 3 * kTileWidth, __builtin_shufflevector(c, e, 2, 3, 10, 11, 6, 7, 14, 15));
    }
  }
}

// Of a tile: what eight_scores sums in lanes first, first + 16 >> Level, ..., added in the order in which it adds them.
template <int Level, int Queries>
[[gnu::always_inline]] inline void lane_sums(NativeF (&sums)[Queries][kTileParts], const float* const* q, const float* tile,
                                             int64_t size, int first) {
  if constexpr (Level == 0) {
#pragma GCC unroll 8
    for (int n = 0; n < Queries; n++) {
#pragma GCC unroll 4
      for (int p = 0; p < kTileParts; p++) sums[n][p] = NativeF{};
    }
    for (int64_t d = first; d < size; d += kLanes) {
      NativeF keys[kTileParts];
#pragma GCC unroll 4
      for (int p = 0; p < kTileParts; p++) keys[p] = load<NativeF>(tile + d * kTileWidth + p * kNativeLanes);
#pragma GCC unroll 8
      for (int n = 0; n < Queries; n++) {
#pragma GCC unroll 4
        for (int p = 0; p < kTileParts; p++) sums[n][p] += keys[p] * q[n][d];
      }
    }
  } else {
    NativeF others[Queries][kTileParts];
    lane_sums<Level - 1, Queries>(sums, q, tile, size, first);
    lane_sums<Level - 1, Queries>(others, q, tile, size, first + (kLanes >> Level));
#pragma GCC unroll 8
    for (int n = 0; n < Queries; n++) {
#pragma GCC unroll 4
      for (int p = 0; p < kTileParts; p++) sums[n][p] += others[n][p];
    }
  }
}

// scores[n][i] = <q[n], keys[i]> for the keys of a tile: the bits of eight_scores.
template <int Queries>
[[gnu::always_inline]] inline void tile_scores(float* const* scores, const float* const* q, const float* tile,
                                               int64_t size) {
  NativeF sums[Queries][kTileParts];
  lane_sums<4, Queries>(sums, q, tile, size, 0);
#pragma GCC unroll 8
  for (int n = 0; n < Queries; n++) {
#pragma GCC unroll 4
    for (int p = 0; p < kTileParts; p++) store(scores[n] + p * kNativeLanes, sums[n][p]);
  }
}

constexpr int64_t kMostOfTile = kParts == 1 ? 4 : 3;  // their sums and the keys fit the registers

template <int64_t Size>
inline void tile_scores(float* const* scores, const float* const* q, int64_t queries, const float* tile, int64_t size) {
  const int64_t known = Size > 0 ? Size : size;
  switch (queries) {
    case 1: return tile_scores<1>(scores, q, tile, known);
    case 2: return tile_scores<2>(scores, q, tile, known);
    case 3: return tile_scores<3>(scores, q, tile, known);
    case 4: return tile_scores<4>(scores, q, tile, known);
    default: __builtin_unreachable();
  }
}

inline void tile_scores(float* const* scores, const float* const* q, int64_t queries, const float* tile, int64_t size) {
  switch (size) {
    case 64: return tile_scores<64>(scores, q, queries, tile, size);
    case 128: return tile_scores<128>(scores, q, queries, tile, size);
    default: return tile_scores<0>(scores, q, queries, tile, size);
  }
}

// exp(x) for x <= 0, 0 below -87, within 1 ulp; a NaN stays one.
template <class V>
[[gnu::always_inline]] inline V exp_down(const V& x) {
  using I = typename Companions<V>::Int;
  I exponent;
  const V y = exp_fraction(x < -87.0f ? V{} - 87.0f : x, exponent);
  const V scale = detail::bits<V>((exponent + 127) << 23);
  return x < -87.0f ? V{} : y * scale;
}

struct Softened {
  float top;    // the largest score
  float total;  // of the weights
};

// Raw scores [lo, hi) of a chunk become weights exp(x - top), x = scale * score, or cap * tanh(x / cap); 0 elsewhere in
// their groups of 16, whatever was there. Lane l of the total sums the places l, l + 16, ...
inline Softened soften(float* scores, int64_t lo, int64_t hi, float scale, float cap) {
  const float infinity = __builtin_inff();
  const int64_t first = lo / kLanes * kLanes;
  NativeF highest = NativeF{} - infinity;
  for (int64_t j = first; j < hi; j += kNativeLanes) {
    NativeF x = load<NativeF>(scores + j) * scale;
    if (cap > 0) x = vec_tanh(x / cap) * cap;
    store(scores + j, x);
    if (j < lo || j + kNativeLanes > hi) {
      for (int64_t i = j; i < j + kNativeLanes; i++) {
        if (i < lo || i >= hi) scores[i] = -infinity;
      }
      x = load<NativeF>(scores + j);
    }
    highest = highest > x ? highest : x;  // max is the same in any order
  }
  float top = highest[0];
  for (int i = 1; i < kNativeLanes; i++) top = std::max(top, highest[i]);
  const float from = top == -infinity ? 0 : top;
  NativeF sums[kParts] = {};
  for (int64_t j = first; j < hi; j += kLanes) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; p++) {
      if (j + p * kNativeLanes >= hi) break;
      const NativeF weight = exp_down(load<NativeF>(scores + j + p * kNativeLanes) - from);
      store(scores + j + p * kNativeLanes, weight);
      sums[p] += weight;
    }
  }
  return {top, sum_lanes(fold(sums))};
}

// outs[i][c] += sum over rows j, in order, of weights[i][j] * v[j][c], for `Vectors` registers of columns.
template <int Queries, int Vectors>
inline void add_values(float* const* outs, const float* const* weights, const float* v, int64_t stride, int64_t rows,
                       int64_t column) {
  NativeF sums[Queries][Vectors];
  const float* w[Queries];
#pragma GCC unroll 4
  for (int i = 0; i < Queries; i++) {
    w[i] = weights[i];
#pragma GCC unroll 8
    for (int c = 0; c < Vectors; c++) sums[i][c] = load<NativeF>(outs[i] + column + c * kNativeLanes);
  }
  v += column;
  for (int64_t j = 0; j < rows; j++, v += stride) {
#pragma GCC unroll 8
    for (int c = 0; c < Vectors; c++) {
      const NativeF value = load<NativeF>(v + c * kNativeLanes);
#pragma GCC unroll 4
      for (int i = 0; i < Queries; i++) sums[i][c] += value * w[i][j];
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Queries; i++) {
#pragma GCC unroll 8
    for (int c = 0; c < Vectors; c++) store(outs[i] + column + c * kNativeLanes, sums[i][c]);
  }
}

// All columns, a multiple of 16, of up to kMostQueries outputs, as many at once as registers hold.
constexpr int64_t kMostQueries = kNativeLanes == 16 ? 4 : 4;

template <int Queries>
inline void add_columns(float* const* outs, const float* const* weights, const float* v, int64_t stride, int64_t rows,
                        int64_t columns) {
  constexpr int kVectors = Queries == 1 ? 8 : kNativeLanes == 16 || Queries < 4 ? 4 : 2;
  int64_t c = 0;
  for (; c + kVectors * kNativeLanes <= columns; c += kVectors * kNativeLanes) {
    add_values<Queries, kVectors>(outs, weights, v, stride, rows, c);
  }
  for (; c + 2 * kNativeLanes <= columns; c += 2 * kNativeLanes) {
    add_values<Queries, 2>(outs, weights, v, stride, rows, c);
  }
  for (; c < columns; c += kNativeLanes) add_values<Queries, 1>(outs, weights, v, stride, rows, c);
}

inline void add_rows(float* const* outs, const float* const* weights, int64_t queries, const float* v, int64_t stride,
                     int64_t rows, int64_t columns) {
  switch (queries) {
    case 1: return add_columns<1>(outs, weights, v, stride, rows, columns);
    case 2: return add_columns<2>(outs, weights, v, stride, rows, columns);
    case 3: return add_columns<3>(outs, weights, v, stride, rows, columns);
    default: return add_columns<4>(outs, weights, v, stride, rows, columns);
  }
}

// A query's sums so far, over the chunks before.
struct Running {
  float top, total;
  bool any = false;
};

// Takes the next chunk in, on the larger of both scales.
inline void merge(Running& sum, float* acc, const Softened& chunk, const float* values, int64_t columns) {
  if (!sum.any) {
    sum = {chunk.top, chunk.total, true};
    std::copy_n(values, columns, acc);
    return;
  }
  const auto shrink = [](float by) { return exp_down(NativeF{} + by)[0]; };
  if (chunk.top > sum.top) {
    const float ours = shrink(sum.top - chunk.top);
    sum.top = chunk.top;
    sum.total = __builtin_fmaf(sum.total, ours, chunk.total);
    for (int64_t c = 0; c < columns; c += kNativeLanes) {
      store(acc + c, load<NativeF>(acc + c) * ours + load<NativeF>(values + c));
    }
  } else {
    const float theirs = chunk.top < sum.top ? shrink(chunk.top - sum.top) : 1;
    sum.total = __builtin_fmaf(chunk.total, theirs, sum.total);
    for (int64_t c = 0; c < columns; c += kNativeLanes) {
      store(acc + c, load<NativeF>(values + c) * theirs + load<NativeF>(acc + c));
    }
  }
}

}  // namespace specc
