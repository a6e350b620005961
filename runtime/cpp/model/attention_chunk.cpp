#include "attention_chunk.h"

#include <algorithm>

#include "half.h"

namespace specc {
namespace {

constexpr int64_t kKeysAhead = 6 * kTileKeys;
constexpr int64_t kManyQueries = 32;  // that make up for transposing keys

// Says that `count` floats will be read soon: the machine's own guesses end with a page, and are late at the first rows.
// Only of rows that hold something: looking for a page that was never written takes longer than the arithmetic.
void fetch(const float* floats, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(floats + i);
}

// `count` neighbouring rows of a cache. In half precision and unpadded, they are one run.
void copy_rows(float* to, const Tensor& x, int64_t offset, int64_t count, int64_t columns) {
  if (x.dtype != SPECC_F32 && x.strides[2] == 1 && x.strides[1] == columns && x.sizes[2] == columns) {
    const uint16_t* from = x.data<uint16_t>() + offset;
    x.dtype == SPECC_F16 ? widen_f16(to, from, count * columns) : widen_bf16(to, from, count * columns);
    return;
  }
  for (int64_t i = 0; i < count; i++) copy_row(to + i * columns, x, offset + i * x.strides[1], columns);
}

// The keys at `count` places of `row` from j on; beyond its end the last again, and nobody reads those scores.
void find_keys(const Problem& p, const Row& row, int64_t kv_head, int64_t j, int64_t count, float* copies,
               const float** keys) {
  for (int64_t i = 0; i < count; i++) {
    const int64_t place = std::min(j + i, row.length - 1);
    const int64_t offset = kv_head * p.k.strides[0] + row.cache_row(place) * p.k.strides[1];
    if (p.copied_keys) {
      keys[i] = copies + i * p.columns;
      if (i > 0 && j + i >= row.length) {
        keys[i] = keys[i - 1];
      } else {
        copy_row(copies + i * p.columns, p.k, offset, p.columns);
      }
    } else {
      keys[i] = p.k.data<float>() + offset;
      if (place + kKeysAhead < row.length) fetch(keys[i] + kKeysAhead * p.k.strides[1], p.columns);
    }
  }
}

// Whether `row` sees one of `count` places from j on.
bool sees(const Row& row, int64_t j, int64_t count) { return j < row.length && j + count > row.begin; }

// Whether what `row` sees of them are the cache rows that `other` finds there.
bool shares(const Row& row, const Row& other, int64_t j, int64_t count) {
  return std::min(j + count, row.length) <= std::min(row.shared, other.shared);
}

// Raw scores at eight places: keys as they lie in memory, a few queries at a time.
void score_few(const Problem& p, const Query* queries, int64_t count, int64_t kv_head, int64_t j, float* scores,
               const Work& work) {
  const float* keys[kTileKeys];
  const Row* found = nullptr;  // whose keys `keys` are
  const auto same = [&](const Row& row) { return found == &row || (found != nullptr && shares(row, *found, j, kTileKeys)); };
  for (int64_t i = 0; i < count;) {
    if (!sees(*queries[i].row, j, kTileKeys)) {
      i++;
      continue;
    }
    if (!same(*queries[i].row)) {
      found = queries[i].row;
      find_keys(p, *found, kv_head, j, kTileKeys, work.keys, keys);
    }
    float* to[kMostScored];
    const float* q[kMostScored];
    int64_t some = 0;
    for (; some < kMostScored && i < count && sees(*queries[i].row, j, kTileKeys) && same(*queries[i].row); i++, some++) {
      to[some] = scores + i * kChunk;
      q[some] = queries[i].q;
    }
    eight_scores(to, q, some, keys, p.columns);
  }
}

// The same at kTileWidth places for queries that share them, by way of a tile.
void score_many(const Problem& p, const Query* queries, int64_t count, const Row& widest, int64_t kv_head, int64_t j,
                float* scores, const Work& work) {
  const float* keys[kTileWidth];
  find_keys(p, widest, kv_head, j, kTileWidth, work.keys, keys);
  transpose_keys(work.tile, keys, p.columns);
  float* to[kMostOfTile];
  const float* q[kMostOfTile];
  int64_t some = 0;
  for (int64_t i = 0; i < count; i++) {
    if (sees(*queries[i].row, j, kTileWidth)) {
      to[some] = scores + i * kChunk;
      q[some++] = queries[i].q;
    }
    if (some == kMostOfTile || (some > 0 && i + 1 == count)) {
      tile_scores(to, q, some, work.tile, p.columns);
      some = 0;
    }
  }
}

// Raw scores of places [chunk, chunk + kChunk).
void score(const Problem& p, const Query* queries, int64_t count, int64_t kv_head, int64_t chunk, const Work& work) {
  int64_t end = 0, begin = chunk + kChunk, all_begin = 0, all_end = chunk + kChunk;  // all queries see all_begin to all_end
  const Row* widest = queries[0].row;
  for (int64_t i = 0; i < count; i++) {
    const Row& row = *queries[i].row;
    end = std::max(end, std::min(row.length, chunk + kChunk));
    begin = std::min(begin, std::max(row.begin, chunk) / kTileWidth * kTileWidth);
    all_begin = std::max(all_begin, row.begin);
    all_end = std::min(all_end, row.shared);
    if (row.shared > widest->shared) widest = &row;
  }
  for (int64_t j = begin; j < end; j += kTileWidth) {
    float* scores = work.scores + (j - chunk);
    const bool all = j >= all_begin && j + kTileWidth <= all_end;
    int64_t seeing = all ? count : 0;
    bool together = true;
    for (int64_t i = 0; i < count && !all; i++) {
      if (!sees(*queries[i].row, j, kTileWidth)) continue;
      seeing++;
      together = together && shares(*queries[i].row, *widest, j, kTileWidth);
    }
    if (together && seeing >= kManyQueries) {
      score_many(p, queries, count, *widest, kv_head, j, scores, work);
    } else {
      for (int64_t i = 0; i < kTileWidth && j + i < end; i += kTileKeys) {
        score_few(p, queries, count, kv_head, j + i, scores + i, work);
      }
    }
  }
}

// Adds `rows` values from `v` on, times the weights, to each of `count` partial sums.
void mix_rows(const Problem& p, const Partial* partials, const float* const* weights, int64_t count, const float* v,
              int64_t stride, int64_t rows) {
  for (int64_t i = 0; i < count; i += kMostQueries) {
    float* outs[kMostQueries];
    const int64_t some = std::min(kMostQueries, count - i);
    for (int64_t n = 0; n < some; n++) outs[n] = partials[i + n].values;
    add_rows(outs, weights + i, some, v, stride, rows, p.value_columns);
  }
}

// Weighted sums of the values of a chunk.
void mix(const Problem& p, const Query* queries, int64_t count, int64_t kv_head, int64_t chunk, const Work& work,
         Partial* partials) {
  int64_t begin = chunk + kChunk, written = 0;
  for (int64_t i = 0; i < count; i++) {
    std::fill_n(partials[i].values, p.value_columns, 0.0f);
    begin = std::min(begin, std::max(queries[i].row->begin, chunk));
    written = std::max(written, queries[i].row->shared);
  }
  const int64_t end = std::min(written, chunk + kChunk);
  const auto value = [&](int64_t cache_row) { return kv_head * p.v.strides[0] + cache_row * p.v.strides[1]; };
  const float* weights[kMaxQueries];
  for (int64_t j = begin; j < end; j += kValueRows) {
    const int64_t stop = std::min(j + kValueRows, end);
    const int64_t start = queries[0].row->start;
    const float* v = work.values;
    int64_t stride = p.value_columns;
    if (p.copied_values) {
      copy_rows(work.values, p.v, value(start + j), stop - j, stride);
    } else {
      v = p.v.data<float>() + value(start + j);
      stride = p.v.strides[1];
      const int64_t soon = std::min(3 * kValueRows, written - j);
      for (int64_t i = 2 * kValueRows; i < soon; i++) fetch(v + i * stride, p.value_columns);
    }
    for (int64_t i = 0, n = 0; i < count; i += n) {
      const auto low = [&](int64_t k) { return std::max(j, queries[k].row->begin); };
      const auto high = [&](int64_t k) { return std::min(stop, queries[k].row->shared); };
      for (n = 0; i + n < count && low(i + n) == low(i) && high(i + n) == high(i); n++) {
        weights[n] = work.scores + (i + n) * kChunk + (low(i) - chunk);
      }
      if (low(i) < high(i)) {
        mix_rows(p, partials + i, weights, n, v + (low(i) - j) * stride, stride, high(i) - low(i));
      }
    }
  }
  for (int64_t i = 0; i < count; i++) {  // places of the path
    const Row& row = *queries[i].row;
    for (int64_t j = std::max({chunk, row.shared, row.begin}); j < std::min(row.length, chunk + kChunk); j++) {
      const float* v = p.v.data<float>() + value(row.cache_row(j));
      if (p.copied_values) {
        copy_row(work.values, p.v, value(row.cache_row(j)), p.value_columns);
        v = work.values;
      }
      weights[0] = work.scores + i * kChunk + (j - chunk);
      mix_rows(p, partials + i, weights, 1, v, 0, 1);
    }
  }
}

}  // namespace

void copy_row(float* to, const Tensor& x, int64_t offset, int64_t columns) {
  const int64_t size = x.sizes[2], stride = x.strides[2];
  if (x.dtype == SPECC_F32) {
    const float* from = x.data<float>() + offset;
    if (stride == 1) {
      std::copy_n(from, size, to);
    } else {
      for (int64_t d = 0; d < size; d++) to[d] = from[d * stride];
    }
  } else {
    const uint16_t* from = x.data<uint16_t>() + offset;
    const bool f16 = x.dtype == SPECC_F16;
    if (stride == 1) {
      f16 ? widen_f16(to, from, size) : widen_bf16(to, from, size);
    } else {
      for (int64_t d = 0; d < size; d++) to[d] = f16 ? widen_f16(from[d * stride]) : widen_bf16(from[d * stride]);
    }
  }
  std::fill(to + size, to + columns, 0.0f);
}

void compute_chunk(const Problem& p, const Query* queries, int64_t count, int64_t kv_head, int64_t chunk,
                   const Work& work, Partial* partials) {
  score(p, queries, count, kv_head, chunk, work);
  for (int64_t i = 0; i < count; i++) {
    const int64_t lo = std::max(queries[i].row->begin - chunk, int64_t{0});
    const int64_t hi = std::min(queries[i].row->length - chunk, kChunk);
    partials[i].softened = {0, -1};
    if (lo >= hi) continue;
    partials[i].softened = soften(work.scores + i * kChunk, lo, hi, static_cast<float>(p.options.scale),
                                  static_cast<float>(p.options.softcap));
  }
  mix(p, queries, count, kv_head, chunk, work, partials);
}

}  // namespace specc
