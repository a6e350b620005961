// A chunk of cached_attention: 256 places of what a block of queries sees.
#pragma once
#include "attention_math.h"
#include "cache.h"

namespace specc {

constexpr int64_t kChunk = 256;      // places; part of the definition
constexpr int64_t kMaxQueries = 48;  // in a block: their scores of a chunk are 48 KB, in L2 next to what they read
constexpr int64_t kValueRows = 32;   // values that stay in L1 while all queries of the block use them

// What a row of the call sees: places [begin, length) of a list of cache rows, start + j before `shared`, and the rows of
// its path through the tree from there on.
struct Row {
  int64_t start, shared, length, begin;
  const int64_t* path;
  int64_t cache_row(int64_t j) const { return j < shared ? start + j : path[j - shared]; }
};

struct Problem {
  const Tensor &q, &k, &v;
  const AttentionOptions& options;
  float* out;
  const Row* rows;
  int64_t group, columns, value_columns;  // head sizes, rounded up to 16
  bool copied_keys, copied_values;        // half precision, padded or strided: used through copies
};

struct Query {
  const Row* row;
  int64_t row_number, head;
  const float* q;
};

// A chunk's part of one query. A total below 0: it sees nothing of the chunk.
struct Partial {
  Softened softened;
  float* values;
};

// A thread's working memory.
struct Work {
  float *scores, *keys, *tile, *values, *queries, *partials, *sums;
};

inline int64_t work_floats(const Problem& p) {
  return kMaxQueries * (kChunk + p.columns + 2 * p.value_columns) + 2 * kTileWidth * p.columns +
         kValueRows * p.value_columns;
}

inline Work divided(const Problem& p, float* memory) {
  Work work;
  work.scores = memory;
  work.keys = work.scores + kMaxQueries * kChunk;
  work.tile = work.keys + kTileWidth * p.columns;
  work.values = work.tile + kTileWidth * p.columns;
  work.queries = work.values + kValueRows * p.value_columns;
  work.partials = work.queries + kMaxQueries * p.columns;
  work.sums = work.partials + kMaxQueries * p.value_columns;
  return work;
}

// A row of a cache, or of q, as floats with zeros up to `columns`.
void copy_row(float* to, const Tensor& x, int64_t offset, int64_t columns);

// What the chunk from place `chunk` on adds to `count` queries, into `partials`, whose `values` are given.
void compute_chunk(const Problem& p, const Query* queries, int64_t count, int64_t kv_head, int64_t chunk,
                   const Work& work, Partial* partials);

}  // namespace specc
