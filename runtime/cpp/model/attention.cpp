// specc::cached_attention over f32 caches.
//
// A query is one (row, query head). For each its arithmetic is fixed: a score is eight interleaved chains over the head
// size, then sum_lanes; the softmax's denominator is eight interleaved chains over absolute positions, then sum_lanes;
// an output element is one chain over positions. Queries that share a kv head are only scheduled together, so that a
// key or value row is read from memory once for a block of them.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "cache.h"
#include "parallel.h"
#include "shim.h"
#include "simd.h"
#include "vecmath.h"

namespace specc {
namespace {

constexpr int64_t kLeastWork = 131072;  // multiplications worth another thread: some 5 us, against 1 to wake it
constexpr int64_t kLanes = 8;
constexpr int64_t kMaxQueries = 24;           // in a block
constexpr int64_t kScoreFloats = 96 * 1024;   // a block's scores stay within L2
constexpr int64_t kValueRows = 32;            // values that stay in L1 while all queries of the block use them

struct Problem {
  const Tensor& q;
  const Tensor& k;
  const Tensor& v;
  const Seen& seen;
  const AttentionOptions& options;
  float* out;
  int64_t group, size, value_size;
  bool padded;  // head sizes that are no multiple of 8, or strided: keys and queries go through padded copies

  int64_t position(int64_t row) const { return seen.positions.data<int64_t>()[row * seen.positions.strides[0]]; }
  int64_t start(int64_t row) const {
    return seen.rows.data<int64_t>()[row * seen.rows.strides[0]] - position(row);
  }
  int64_t first(int64_t row) const {
    const int64_t position = this->position(row);
    return options.window > 0 ? std::max<int64_t>(0, position - options.window + 1) : 0;
  }
};

struct Query {
  int64_t row, head;
  int64_t begin, end;   // cache rows it attends to
  const float* q;
  float* scores;        // of cache row j at [j - base]
  float* out;
  float denominator;
};

// One thread's working memory; a pooled tensor, so that steady runs allocate nothing.
struct Scratch {
  Tensor* memory;
  float* floats;
  explicit Scratch(int64_t count) {
    memory = new_empty(SPECC_F32, 1, &count);
    floats = memory == nullptr ? nullptr : memory->data<float>();
  }
  ~Scratch() { release(memory); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Scores of eight keys against one query: scores[i] = <q, key i>.
[[gnu::always_inline]] inline F8 eight_scores(const float* q, const float* const* keys, int64_t size) {
  F8 sums[8] = {};
  for (int64_t d = 0; d < size; d += kLanes) {
    const F8 part = load<F8>(q + d);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) sums[i] += part * load<F8>(keys[i] + d);
  }
  // sum_lanes of all eight at once, in the same order: fold halves, then transpose and add.
  F8 folded[4];  // lanes 0..3: key 2i folded to four; lanes 4..7: key 2i+1
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    const F8 low = __builtin_shufflevector(sums[2 * i], sums[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11);
    const F8 high = __builtin_shufflevector(sums[2 * i], sums[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15);
    folded[i] = low + high;
  }
  F8 halves[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    const F8 even = __builtin_shufflevector(folded[2 * i], folded[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13);
    const F8 odd = __builtin_shufflevector(folded[2 * i], folded[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    halves[i] = even + odd;  // keys 4i, 4i+2 | 4i+1, 4i+3, two lanes each
  }
  const F8 left = __builtin_shufflevector(halves[0], halves[1], 0, 2, 8, 10, 4, 6, 12, 14);
  const F8 right = __builtin_shufflevector(halves[0], halves[1], 1, 3, 9, 11, 5, 7, 13, 15);
  const F8 total = left + right;  // keys 0 2 4 6 1 3 5 7
  return __builtin_shufflevector(total, total, 0, 4, 1, 5, 2, 6, 3, 7);
}

void copy_padded(float* to, const float* from, int64_t count, int64_t stride, int64_t padded) {
  for (int64_t d = 0; d < count; d++) to[d] = from[d * stride];
  std::memset(to + count, 0, (padded - count) * sizeof(float));
}

// Fills the raw scores of all queries for cache rows [base, end), eight keys at a time.
void score(const Problem& p, Query* queries, int64_t count, int64_t kv_head, int64_t base, int64_t end,
           float* key_copies) {
  const float* cache = p.k.data<float>() + kv_head * p.k.strides[0] + p.start(queries[0].row) * p.k.strides[1];
  const int64_t padded_size = round_up(p.size, kLanes);
  for (int64_t j = base; j < end; j += kLanes) {
    const float* keys[kLanes];
    for (int64_t i = 0; i < kLanes; i++) {
      const int64_t row = std::min(j + i, end - 1);  // the last block repeats a key; nobody reads those scores
      keys[i] = cache + row * p.k.strides[1];
      if (p.padded) {
        copy_padded(key_copies + i * padded_size, keys[i], p.size, p.k.strides[2], padded_size);
        keys[i] = key_copies + i * padded_size;
      } else {
        __builtin_prefetch(keys[i] + 2 * kLanes * p.k.strides[1]);
      }
    }
    for (int64_t i = 0; i < count; i++) {
      if (j >= queries[i].end || j + kLanes <= queries[i].begin) continue;
      store(queries[i].scores + (j - base), eight_scores(queries[i].q, keys, padded_size));
    }
  }
}

// Turns raw scores into weights exp(score - max), and sums them. `base` is a multiple of 8, so lanes are absolute.
void soften(const Problem& p, Query& query, int64_t base) {
  const int64_t first = query.begin / kLanes * kLanes;
  const float infinity = __builtin_inff();
  const float scale = static_cast<float>(p.options.scale);
  const float cap = static_cast<float>(p.options.softcap);
  F8 highest = F8{} - infinity;
  for (int64_t j = first; j < query.end; j += kLanes) {
    F8 s = load<F8>(query.scores + (j - base)) * scale;
    if (cap > 0) s = vec_tanh(s / cap) * cap;
    for (int64_t i = 0; i < kLanes && (j < query.begin || j + kLanes > query.end); i++) {
      if (j + i < query.begin || j + i >= query.end) s[i] = -infinity;  // whatever was there, even NaN
    }
    store(query.scores + (j - base), s);
    highest = highest > s ? highest : s;  // max is the same in any order
  }
  float top = highest[0];
  for (int i = 1; i < kLanes; i++) top = std::max(top, highest[i]);
  const Tensor* sinks = p.options.sinks;
  const float sink = sinks == nullptr ? -infinity : sinks->data<float>()[query.head * sinks->strides[0]];
  top = std::max(top, sink);
  F8 sums = {};
  for (int64_t j = first; j < query.end; j += kLanes) {
    const F8 weight = vec_exp(load<F8>(query.scores + (j - base)) - top);
    store(query.scores + (j - base), weight);
    sums += weight;
  }
  query.denominator = sum_lanes(sums);
  if (sinks != nullptr) query.denominator += vec_exp(F8{} + (sink - top))[0];
}

// out[d] += sum over j of weight[j] * v[j][d] for `Columns` vectors of columns and up to two queries.
template <int Queries, int Vectors>
void add_values(const float* const* weights, float* const* outs, const float* v, int64_t stride, int64_t rows) {
  F8 sums[Queries][Vectors];
  for (int i = 0; i < Queries; i++) {
    for (int c = 0; c < Vectors; c++) sums[i][c] = load<F8>(outs[i] + c * kLanes);
  }
  const float* w[Queries];
  for (int i = 0; i < Queries; i++) w[i] = weights[i];
  for (int64_t j = 0; j < rows; j++) {
    const float* value = v + j * stride;
#pragma GCC unroll 8
    for (int c = 0; c < Vectors; c++) {
      const F8 part = load<F8>(value + c * kLanes);
#pragma GCC unroll 4
      for (int i = 0; i < Queries; i++) sums[i][c] += part * w[i][j];
    }
  }
  for (int i = 0; i < Queries; i++) {
    for (int c = 0; c < Vectors; c++) store(outs[i] + c * kLanes, sums[i][c]);
  }
}

// All columns of `Queries` outputs over cache rows [begin, end).
template <int Queries>
void add_rows(const Problem& p, const Query* queries, const float* v, int64_t base, int64_t begin, int64_t end) {
  const float* weights[Queries];
  float* outs[Queries];
  for (int i = 0; i < Queries; i++) weights[i] = queries[i].scores + (begin - base);
  const float* first = v + begin * p.v.strides[1];
  int64_t d = 0;
  if (p.v.strides[2] == 1) {
    for (; d + 4 * kLanes <= p.value_size; d += 4 * kLanes) {
      for (int i = 0; i < Queries; i++) outs[i] = queries[i].out + d;
      add_values<Queries, 4>(weights, outs, first + d, p.v.strides[1], end - begin);
    }
    for (; d + kLanes <= p.value_size; d += kLanes) {
      for (int i = 0; i < Queries; i++) outs[i] = queries[i].out + d;
      add_values<Queries, 1>(weights, outs, first + d, p.v.strides[1], end - begin);
    }
  }
  for (; d < p.value_size; d++) {
    for (int i = 0; i < Queries; i++) {
      float sum = queries[i].out[d];
      for (int64_t j = 0; j < end - begin; j++) {
        sum = __builtin_fmaf(first[j * p.v.strides[1] + d * p.v.strides[2]], weights[i][j], sum);
      }
      queries[i].out[d] = sum;
    }
  }
}

void mix(const Problem& p, Query* queries, int64_t count, int64_t kv_head, int64_t base, int64_t end) {
  const float* v = p.v.data<float>() + kv_head * p.v.strides[0] + p.start(queries[0].row) * p.v.strides[1];
  for (int64_t i = 0; i < count; i++) std::memset(queries[i].out, 0, p.value_size * sizeof(float));
  for (int64_t j = base; j < end; j += kValueRows) {
    const int64_t stop = std::min(j + kValueRows, end);
    for (int64_t i = 0; i < count;) {
      const int64_t begin = std::max(j, queries[i].begin);
      const int64_t last = std::min(stop, queries[i].end);
      // Neighbours of one row see the same cache rows and share the loads.
      const bool pair = i + 1 < count && begin == std::max(j, queries[i + 1].begin) &&
                        last == std::min(stop, queries[i + 1].end);
      if (begin < last) {
        if (pair) {
          add_rows<2>(p, queries + i, v, base, begin, last);
        } else {
          add_rows<1>(p, queries + i, v, base, begin, last);
        }
      }
      i += pair ? 2 : 1;
    }
  }
  for (int64_t i = 0; i < count; i++) {
    for (int64_t d = 0; d < p.value_size; d++) queries[i].out[d] /= queries[i].denominator;
  }
}

// Queries [first, first + count) of a kv head, numbered row by row.
Status block(const Problem& p, int64_t kv_head, int64_t first, int64_t count) {
  Query queries[kMaxQueries];
  int64_t base = p.k.sizes[1];
  int64_t end = 0;
  for (int64_t i = 0; i < count; i++) {
    Query& query = queries[i];
    query.row = (first + i) / p.group;
    query.head = kv_head * p.group + (first + i) % p.group;
    query.begin = p.first(query.row);
    query.end = p.position(query.row) + 1;
    query.q = p.q.data<float>() + query.row * p.q.strides[0] + query.head * p.q.strides[1];
    query.out = p.out + (query.row * p.q.sizes[1] + query.head) * p.value_size;
    base = std::min(base, query.begin / kLanes * kLanes);
    end = std::max(end, query.end);
  }
  const int64_t padded_size = round_up(p.size, kLanes);
  const int64_t span = round_up(end - base, kLanes);
  const Scratch scratch(count * span + (p.padded ? (count + kLanes) * padded_size : 0));
  if (scratch.floats == nullptr) return 1;
  float* copies = scratch.floats + count * span;
  for (int64_t i = 0; i < count; i++) {
    queries[i].scores = scratch.floats + i * span;
    if (!p.padded) continue;
    float* copy = copies + (kLanes + i) * padded_size;
    copy_padded(copy, queries[i].q, p.size, p.q.strides[2], padded_size);
    queries[i].q = copy;
  }
  score(p, queries, count, kv_head, base, end, copies);
  for (int64_t i = 0; i < count; i++) soften(p, queries[i], base);
  mix(p, queries, count, kv_head, base, end);
  return kOk;
}

Status check(const Tensor& q, const Tensor& k, const Tensor& v, const Seen& seen,
             const AttentionOptions& options) {
  if (q.dtype != SPECC_F32 || k.dtype != SPECC_F32 || v.dtype != SPECC_F32 || q.ndim != 3 || k.ndim != 3 ||
      v.ndim != 3 || k.sizes[0] != v.sizes[0] || k.sizes[1] != v.sizes[1] || q.sizes[2] != k.sizes[2] ||
      k.sizes[0] == 0 || q.sizes[1] % k.sizes[0] != 0) {
    return fail("cached_attention: q [T, query heads, size], k and v [kv heads, positions, size], all f32, must fit");
  }
  const Tensor* sinks = options.sinks;
  if (sinks != nullptr && (sinks->dtype != SPECC_F32 || sinks->ndim != 1 || sinks->sizes[0] != q.sizes[1])) {
    return fail("cached_attention: sinks must be f32 [%ld]", (long)q.sizes[1]);
  }
  if (seen.parents != nullptr) return fail("cached_attention: token trees are not implemented");
  if (check_rows("cached_attention", seen.rows, q.sizes[0], k.sizes[1]) != kOk) return 1;
  if (check_rows("cached_attention: positions", seen.positions, q.sizes[0], k.sizes[1]) != kOk) return 1;
  for (int64_t t = 0; t < q.sizes[0]; t++) {
    const int64_t position = seen.positions.data<int64_t>()[t * seen.positions.strides[0]];
    const int64_t row = seen.rows.data<int64_t>()[t * seen.rows.strides[0]];
    if (position > row) {
      return fail("cached_attention: position %ld cannot lie in cache row %ld", (long)position, (long)row);
    }
  }
  return kOk;
}

}  // namespace

Tensor* cached_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Seen& seen,
                         const AttentionOptions& options) {
  if (check(q, k_cache, v_cache, seen, options) != kOk) return nullptr;
  const int64_t sizes[] = {q.sizes[0], q.sizes[1], v_cache.sizes[2]};
  Tensor* out = new_empty(SPECC_F32, 3, sizes);
  if (out == nullptr || out->numel() == 0) return out;
  const int64_t kv_heads = k_cache.sizes[0];
  const int64_t size = q.sizes[2];
  const bool padded = size % kLanes != 0 || q.strides[2] != 1 || k_cache.strides[2] != 1;
  const Problem problem{q, k_cache, v_cache, seen, options, out->data<float>(), q.sizes[1] / kv_heads,
                        size, sizes[2], padded};

  int64_t longest = 0;
  for (int64_t t = 0; t < q.sizes[0]; t++) longest = std::max(longest, problem.position(t) + 1 - problem.first(t));
  const int64_t per_head = problem.group * q.sizes[0];
  const int64_t work = per_head * kv_heads * longest * (size + sizes[2]);
  const int64_t parts = parts_for(work, kLeastWork);
  // Big blocks read the cache less often; small ones spread over the threads evenly.
  int64_t queries = std::clamp<int64_t>(kScoreFloats / longest, 1, kMaxQueries);
  if (parts > 1) queries = std::min(queries, std::max<int64_t>(1, per_head * kv_heads / (parts * 3)));
  for (int64_t t = 1; t < q.sizes[0]; t++) {
    if (problem.start(t) != problem.start(0)) queries = 1;
  }
  const int64_t blocks = (per_head + queries - 1) / queries;

  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  parallel(parts, [&](int32_t) {
    for (int64_t i = next++; i < blocks * kv_heads; i = next++) {
      const int64_t first = per_head * (i % blocks) / blocks;
      const int64_t last = per_head * (i % blocks + 1) / blocks;
      if (block(problem, i / blocks, first, last - first) != kOk) failed = true;
    }
  });
  if (failed) {
    release(out);
    fail("out of memory: the scores of cached_attention");
    return nullptr;
  }
  return out;
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
