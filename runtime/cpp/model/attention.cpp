// specc::cached_attention.
//
// A query is one (row, query head), and sees a list of cache rows: `Row` says which. Its arithmetic depends on their
// order and on nothing else: the list is cut into chunks of 256 places; in each a softmax of its own (attention_math.h);
// then chunks are merged in order, the sink last. Queries that share a kv head are only scheduled together, so that a
// key or value is read from memory, and widened, once for a block of them; and chunks may be computed on several
// threads.
#include <algorithm>
#include <atomic>

#include "attention_math.h"
#include "cache.h"
#include "half.h"
#include "parallel.h"
#include "shim.h"

namespace specc {
namespace {

constexpr int64_t kLeastWork = 131072;  // multiplications worth another thread: some 5 us, against 1 to wake it
constexpr int64_t kChunk = 256;         // places; part of the definition
constexpr int64_t kMaxQueries = 48;     // in a block: their scores of a chunk are 48 KB, in L2 next to what they read
constexpr int64_t kManyQueries = 32;    // that make up for transposing keys
constexpr int64_t kValueRows = 32;      // values that stay in L1 while all queries of the block use them

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
int64_t at(const Tensor& integers, int64_t i) { return integers.data<int64_t>()[i * integers.strides[0]]; }

// What a row of the call sees: places [begin, length) of a list of cache rows, start + j before `shared`, and the rows of
// its path through the tree from there on.
struct Row {
  int64_t start, shared, length, begin;
  const int64_t* path;
  int64_t cache_row(int64_t j) const { return j < shared ? start + j : path[j - shared]; }
};

// Pooled memory, so that steady runs allocate nothing.
class Memory {
 public:
  Memory(int32_t dtype, int64_t count) : tensor_(new_empty(dtype, 1, &count)) {}
  ~Memory() { release(tensor_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  explicit operator bool() const { return tensor_ != nullptr; }
  template <class T>
  T* data() const {
    return tensor_->data<T>();
  }

 private:
  Tensor* tensor_;
};

struct Problem {
  const Tensor &q, &k, &v;
  const AttentionOptions& options;
  float* out;
  const Row* rows;
  int64_t group, columns, value_columns;  // head sizes, rounded up to 16
  bool copied_keys, copied_values;        // half precision, padded or strided: used through copies
};

// Consecutive queries of one kv head whose rows have the same start, numbered row by row.
struct Block {
  int64_t first, count;
  int64_t begin_chunk, end_chunk;
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

int64_t work_floats(const Problem& p) {
  return kMaxQueries * (kChunk + p.columns + 2 * p.value_columns) + 2 * kLanes * p.columns +
         kValueRows * p.value_columns;
}

Work divided(const Problem& p, float* memory) {
  Work work;
  work.scores = memory;
  work.keys = work.scores + kMaxQueries * kChunk;
  work.tile = work.keys + kLanes * p.columns;
  work.values = work.tile + kLanes * p.columns;
  work.queries = work.values + kValueRows * p.value_columns;
  work.partials = work.queries + kMaxQueries * p.columns;
  work.sums = work.partials + kMaxQueries * p.value_columns;
  return work;
}

// Says that `count` floats will be read soon: the machine's own guesses end with a page, and are late at the first rows.
void fetch(const float* floats, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(floats + i);
}

// A row of a cache, or of q, as floats with zeros up to `columns`.
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
      fetch(keys[i] + 6 * kTileKeys * p.k.strides[1], p.columns);
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

// The same at sixteen places for queries that share them, by way of a tile.
void score_many(const Problem& p, const Query* queries, int64_t count, const Row& widest, int64_t kv_head, int64_t j,
                float* scores, const Work& work) {
  const float* keys[kLanes];
  find_keys(p, widest, kv_head, j, kLanes, work.keys, keys);
  transpose_keys(work.tile, keys, p.columns);
  float* to[kMostOfTile];
  const float* q[kMostOfTile];
  int64_t some = 0;
  for (int64_t i = 0; i < count; i++) {
    if (sees(*queries[i].row, j, kLanes)) {
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
  int64_t end = 0, begin = chunk + kChunk;
  const Row* widest = queries[0].row;
  for (int64_t i = 0; i < count; i++) {
    const Row& row = *queries[i].row;
    end = std::max(end, std::min(row.length, chunk + kChunk));
    begin = std::min(begin, std::max(row.begin, chunk) / kLanes * kLanes);
    if (row.shared > widest->shared) widest = &row;
  }
  for (int64_t j = begin; j < end; j += kLanes) {
    float* scores = work.scores + (j - chunk);
    int64_t seeing = 0;
    bool together = true;
    for (int64_t i = 0; i < count; i++) {
      if (!sees(*queries[i].row, j, kLanes)) continue;
      seeing++;
      together = together && shares(*queries[i].row, *widest, j, kLanes);
    }
    if (together && seeing >= kManyQueries) {
      score_many(p, queries, count, *widest, kv_head, j, scores, work);
    } else {
      score_few(p, queries, count, kv_head, j, scores, work);
      score_few(p, queries, count, kv_head, j + kTileKeys, scores + kTileKeys, work);
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
  int64_t begin = chunk + kChunk, end = 0;
  for (int64_t i = 0; i < count; i++) {
    std::fill_n(partials[i].values, p.value_columns, 0.0f);
    begin = std::min(begin, std::max(queries[i].row->begin, chunk));
    end = std::max(end, std::min(queries[i].row->shared, chunk + kChunk));
  }
  const auto value = [&](int64_t cache_row) { return kv_head * p.v.strides[0] + cache_row * p.v.strides[1]; };
  const float* weights[kMaxQueries];
  for (int64_t j = begin; j < end; j += kValueRows) {
    const int64_t stop = std::min(j + kValueRows, end);
    const int64_t start = queries[0].row->start;
    const float* v = work.values;
    int64_t stride = p.value_columns;
    if (p.copied_values) {
      for (int64_t i = j; i < stop; i++) {
        copy_row(work.values + (i - j) * stride, p.v, value(start + i), p.value_columns);
      }
    } else {
      v = p.v.data<float>() + value(start + j);
      stride = p.v.strides[1];
      for (int64_t i = 2 * kValueRows; i < 3 * kValueRows; i++) fetch(v + i * stride, p.value_columns);
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

void make_queries(const Problem& p, const Block& block, int64_t kv_head, const Work& work, Query* queries) {
  for (int64_t i = 0; i < block.count; i++) {
    const int64_t row = (block.first + i) / p.group;
    const int64_t head = kv_head * p.group + (block.first + i) % p.group;
    const int64_t offset = row * p.q.strides[0] + head * p.q.strides[1];
    queries[i] = {p.rows + row, row, head, p.q.data<float>() + offset};
    if (p.columns != p.q.sizes[2] || p.q.strides[2] != 1) {
      float* copy = work.queries + i * p.columns;
      copy_row(copy, p.q, offset, p.columns);
      queries[i].q = copy;
    }
  }
}

// The sink joins, and the sums become the result.
void finish(const Problem& p, const Query& query, Running& sum, float* acc) {
  float over = 1;
  if (const Tensor* sinks = p.options.sinks; sinks != nullptr) {
    const float sink = sinks->data<float>()[query.head * sinks->strides[0]];
    if (sink > sum.top) {
      over = exp_down(NativeF{} + (sum.top - sink))[0];
      sum.total = __builtin_fmaf(sum.total, over, 1.0f);
    } else {
      sum.total += exp_down(NativeF{} + (sink - sum.top))[0];
    }
  }
  float* out = p.out + (query.row_number * p.q.sizes[1] + query.head) * p.v.sizes[2];
  for (int64_t d = 0; d < p.v.sizes[2]; d++) out[d] = acc[d] * over / sum.total;
}

// A whole block, chunk after chunk.
void run_block(const Problem& p, const Block& block, int64_t kv_head, const Work& work) {
  Query queries[kMaxQueries];
  Partial partials[kMaxQueries];
  Running sums[kMaxQueries] = {};
  make_queries(p, block, kv_head, work, queries);
  for (int64_t i = 0; i < block.count; i++) partials[i].values = work.partials + i * p.value_columns;
  for (int64_t c = block.begin_chunk; c < block.end_chunk; c++) {
    compute_chunk(p, queries, block.count, kv_head, c * kChunk, work, partials);
    for (int64_t i = 0; i < block.count; i++) {
      if (partials[i].softened.total < 0) continue;
      merge(sums[i], work.sums + i * p.value_columns, partials[i].softened, partials[i].values, p.value_columns);
    }
  }
  for (int64_t i = 0; i < block.count; i++) finish(p, queries[i], sums[i], work.sums + i * p.value_columns);
}

// Chunks of a block on several threads: each leaves its part in `shared`, and who is last merges them.
struct Shared {
  float* floats;   // [pieces][chunks][queries][kLanes + value_columns]; the first two are top and total
  int32_t* done;   // [pieces]
  int64_t chunks;  // most of a block
  int64_t queries;
};

void run_chunk(const Problem& p, const Block& block, int64_t kv_head, int64_t c, int64_t piece, const Shared& shared,
               const Work& work) {
  Query queries[kMaxQueries];
  Partial partials[kMaxQueries];
  make_queries(p, block, kv_head, work, queries);
  const auto place = [&](int64_t chunk, int64_t i) {
    const int64_t of_chunk = piece * shared.chunks + chunk - block.begin_chunk;
    return shared.floats + (of_chunk * shared.queries + i) * (kLanes + p.value_columns);
  };
  for (int64_t i = 0; i < block.count; i++) partials[i].values = place(c, i) + kLanes;
  compute_chunk(p, queries, block.count, kv_head, c * kChunk, work, partials);
  for (int64_t i = 0; i < block.count; i++) {
    place(c, i)[0] = partials[i].softened.top;
    place(c, i)[1] = partials[i].softened.total;
  }
  const int32_t all = static_cast<int32_t>(block.end_chunk - block.begin_chunk);
  if (std::atomic_ref<int32_t>(shared.done[piece]).fetch_add(1, std::memory_order_acq_rel) + 1 < all) return;
  for (int64_t i = 0; i < block.count; i++) {
    Running sum = {};
    for (int64_t chunk = block.begin_chunk; chunk < block.end_chunk; chunk++) {
      const float* part = place(chunk, i);
      if (part[1] < 0) continue;
      merge(sum, work.sums, {part[0], part[1]}, part + kLanes, p.value_columns);
    }
    finish(p, queries[i], sum, work.sums);
  }
}

// What every row sees; `paths` has room for T * T cache rows where there are parents.
Status find_rows(const Seen& seen, int64_t count, int64_t window, Row* rows, int64_t* paths) {
  for (int64_t t = 0; t < count; t++) {
    const int64_t position = at(seen.positions, t), cache_row = at(seen.rows, t);
    const int64_t parent = seen.parents == nullptr ? -1 : at(*seen.parents, t);
    if (parent < -1 || parent >= t) return fail("cached_attention: row %ld has parent %ld", (long)t, (long)parent);
    Row& row = rows[t];
    if (parent < 0) {
      if (position > cache_row) {
        return fail("cached_attention: position %ld cannot lie in cache row %ld", (long)position, (long)cache_row);
      }
      row = {cache_row - position, position + 1, position + 1, 0, nullptr};
    } else {
      row = rows[parent];
      int64_t* path = paths + t * count;
      std::copy_n(row.path, row.length - row.shared, path);
      path[row.length - row.shared] = cache_row;
      row.path = path;
      row.length++;
    }
    row.begin = window > 0 ? std::max<int64_t>(0, row.length - window) : 0;
  }
  return kOk;
}

Status check(const Tensor& q, const Tensor& k, const Tensor& v, const Seen& seen, const AttentionOptions& options) {
  const bool types = q.dtype == SPECC_F32 && k.dtype == v.dtype &&
                     (k.dtype == SPECC_F32 || k.dtype == SPECC_F16 || k.dtype == SPECC_BF16);
  if (!types || q.ndim != 3 || k.ndim != 3 || v.ndim != 3 || k.sizes[0] != v.sizes[0] || k.sizes[1] != v.sizes[1] ||
      q.sizes[2] != k.sizes[2] || k.sizes[0] == 0 || q.sizes[1] % k.sizes[0] != 0) {
    return fail("cached_attention: q f32 [T, query heads, size], k and v [kv heads, rows, size] must fit");
  }
  const Tensor* sinks = options.sinks;
  if (sinks != nullptr && (sinks->dtype != SPECC_F32 || sinks->ndim != 1 || sinks->sizes[0] != q.sizes[1])) {
    return fail("cached_attention: sinks must be f32 [%ld]", (long)q.sizes[1]);
  }
  const int64_t count = q.sizes[0], capacity = k.sizes[1];
  if (check_rows("cached_attention", seen.rows, count, capacity) != kOk) return 1;
  if (check_rows("cached_attention: positions", seen.positions, count, capacity) != kOk) return 1;
  if (seen.parents == nullptr) return kOk;
  const Tensor& parents = *seen.parents;
  return parents.dtype == SPECC_I64 && parents.ndim == 1 && parents.sizes[0] == count
             ? kOk
             : fail("cached_attention: parents must be i64 [%ld]", (long)count);
}

// Blocks of whole rows where a row's heads fit in one.
int64_t make_blocks(const Problem& p, int64_t count, Block* blocks) {
  const int64_t most = p.group < kMaxQueries ? kMaxQueries / p.group * p.group : kMaxQueries;
  int64_t made = 0;
  for (int64_t first = 0; first < count; first++) {
    int64_t last = first;
    while (last + 1 < count && p.rows[last + 1].start == p.rows[first].start) last++;
    for (int64_t query = first * p.group; query < (last + 1) * p.group; query += most) {
      Block block{query, std::min(most, (last + 1) * p.group - query), INT64_MAX, 0};
      for (int64_t row = query / p.group; row <= (query + block.count - 1) / p.group; row++) {
        block.begin_chunk = std::min(block.begin_chunk, p.rows[row].begin / kChunk);
        block.end_chunk = std::max(block.end_chunk, (p.rows[row].length + kChunk - 1) / kChunk);
      }
      blocks[made++] = block;
    }
    first = last;
  }
  return made;
}

Status compute(const Problem& p, const Block* blocks, int64_t count, int64_t longest) {
  const int64_t kv_heads = p.k.sizes[0];
  const int64_t work = p.q.sizes[0] * p.q.sizes[1] * longest * (p.columns + p.value_columns);
  const int64_t parts = parts_for(work, kLeastWork), pieces = count * kv_heads;
  int64_t chunks = 0, queries = 0;
  for (int64_t b = 0; b < count; b++) {
    chunks = std::max(chunks, blocks[b].end_chunk - blocks[b].begin_chunk);
    queries = std::max(queries, blocks[b].count);
  }
  const bool split = parts > 1 && chunks > 1 && pieces < 4 * parts;

  const int64_t own = round_up(work_floats(p), kLanes);
  const int64_t spread = split ? pieces * chunks * queries * (kLanes + p.value_columns) : 0;
  const Memory memory(SPECC_F32, parts * own + spread), counters(SPECC_I32, split ? pieces : 1);
  if (!memory || !counters) return fail("out of memory: the scores of cached_attention");
  const Shared shared{memory.data<float>() + parts * own, counters.data<int32_t>(), chunks, queries};
  std::fill_n(shared.done, split ? pieces : 1, 0);

  std::atomic<int64_t> next{0};
  parallel(parts, [&](int32_t part) {
    const Work mine = divided(p, memory.data<float>() + part * own);
    const int64_t tasks = split ? pieces * chunks : pieces;
    for (int64_t task = next++; task < tasks; task = next++) {
      const int64_t piece = split ? task % pieces : task;
      const Block& block = blocks[piece / kv_heads];
      if (!split) {
        run_block(p, block, piece % kv_heads, mine);
        continue;
      }
      const int64_t c = block.begin_chunk + task / pieces;
      if (c >= block.end_chunk) continue;
      run_chunk(p, block, piece % kv_heads, c, piece, shared, mine);
    }
  });
  return kOk;
}

bool dense(const Tensor& cache) {
  return cache.dtype == SPECC_F32 && cache.strides[2] == 1 && cache.sizes[2] % kLanes == 0;
}

Status attend(Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v, const Seen& seen,
              const AttentionOptions& options) {
  const int64_t count = q.sizes[0], group = q.sizes[1] / k.sizes[0];
  constexpr int64_t kRowInts = sizeof(Row) / sizeof(int64_t), kBlockInts = sizeof(Block) / sizeof(int64_t);
  const int64_t most_blocks = count * (group / kMaxQueries + 2);
  const int64_t paths = seen.parents == nullptr ? 0 : count * count;
  const Memory memory(SPECC_I64, count * kRowInts + most_blocks * kBlockInts + paths);
  if (!memory) return 1;
  int64_t* integers = memory.data<int64_t>();
  Row* rows = reinterpret_cast<Row*>(integers);
  Block* blocks = reinterpret_cast<Block*>(integers + count * kRowInts);
  if (find_rows(seen, count, options.window, rows, integers + count * kRowInts + most_blocks * kBlockInts) != kOk) {
    return 1;
  }
  const Problem problem{q, k, v, options, out.data<float>(), rows, group, round_up(q.sizes[2], kLanes),
                        round_up(v.sizes[2], kLanes), !dense(k), !dense(v)};
  int64_t longest = 0;
  for (int64_t t = 0; t < count; t++) longest = std::max(longest, rows[t].length - rows[t].begin);
  return compute(problem, blocks, make_blocks(problem, count, blocks), longest);
}

}  // namespace

Tensor* cached_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Seen& seen,
                         const AttentionOptions& options) {
  if (check(q, k_cache, v_cache, seen, options) != kOk) return nullptr;
  const int64_t sizes[] = {q.sizes[0], q.sizes[1], v_cache.sizes[2]};
  Tensor* out = new_empty(SPECC_F32, 3, sizes);
  if (out == nullptr || out->numel() == 0 || attend(*out, q, k_cache, v_cache, seen, options) == kOk) return out;
  release(out);
  return nullptr;
}

}  // namespace specc

SPECC_SHIM(aoti_torch_cpu_cached_attention)
(specc::Tensor* q, specc::Tensor* k_cache, specc::Tensor* v_cache, specc::Tensor* positions, specc::Tensor* rows,
 specc::Tensor** parents, double scale, int64_t window, double softcap, specc::Tensor** sinks, specc::Tensor** result)
    -> specc::Status {
  const specc::AttentionOptions options{scale, window, softcap, sinks == nullptr ? nullptr : *sinks};
  const specc::Seen seen{*positions, *rows, parents == nullptr ? nullptr : *parents};
  *result = specc::cached_attention(*q, *k_cache, *v_cache, seen, options);
  return *result == nullptr ? 1 : specc::kOk;
}
