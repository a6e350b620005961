// specc::cached_attention.
//
// A query is one (row, query head), and sees a list of cache rows: `Row` says which. Its arithmetic depends on their
// order and on nothing else: the list is cut into chunks of 256 places; in each a softmax of its own (attention_math.h);
// then chunks are merged in order, the sink last. Queries that share a kv head are only scheduled together, so that a
// key or value is read from memory, and widened, once for a block of them; and chunks may be computed on several
// threads.
#include <algorithm>
#include <atomic>

#include "attention_chunk.h"
#include "parallel.h"
#include "shim.h"

namespace specc {
namespace {

constexpr int64_t kLeastWork = 131072;  // multiplications worth another thread: some 5 us, against 1 to wake it

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
int64_t at(const Tensor& integers, int64_t i) { return integers.data<int64_t>()[i * integers.strides[0]]; }

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

// Consecutive queries of one kv head whose rows have the same start, numbered row by row.
struct Block {
  int64_t first, count;
  int64_t begin_chunk, end_chunk;
};

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
  // Rows of a prefill have parents too where a model knows trees, and all of them are roots.
  bool tree = false;
  for (int64_t t = 0; seen.parents != nullptr && t < count && !tree; t++) tree = at(*seen.parents, t) >= 0;
  const int64_t paths = tree ? count * count : 0;
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
