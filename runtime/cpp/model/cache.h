// Key and value caches: f32, f16 or bf16 [kv heads, rows, head size], written in place.
#pragma once
#include "error.h"
#include "tensor.h"

namespace specc {

// cache[:, rows[t], :] := x[t] for x [T, kv heads, head size]. A failed call has written nothing.
Status cache_write(Tensor& cache, const Tensor& x, const Tensor& rows);

// The same for a shard of the cache, which holds rows `first` and on: those that lie elsewhere are passed over.
Status cache_write_shard(Tensor& cache, const Tensor& x, const Tensor& rows, int64_t first);

// cache[:, target[i], :] := cache[:, source[i], :] as it was before the call.
Status cache_move(Tensor& cache, const Tensor& source, const Tensor& target);

// state[0:T] := x, for buffers of rows.
Status cache_copy(const Tensor& x, Tensor& state);

// What cached_attention is told besides its tensors.
struct AttentionOptions {
  double scale = 1;
  int64_t window = 0;   // only the last `window` of the rows it would see; 0: all of them
  double softcap = 0;   // scores become softcap * tanh(score / softcap); 0: unchanged
  const Tensor* sinks = nullptr;  // [query heads]: a logit that only adds to the softmax's denominator
};

// Which cache rows each row of a call sees, all i64 [T]. A root, and without parents all are, sees rows[t] - positions[t]
// to rows[t]; another row what row parents[t] < t of the call sees, and then cache row rows[t].
struct Seen {
  const Tensor& positions;
  const Tensor& rows;
  const Tensor* parents = nullptr;
};

// q [T, Hq, D], k_cache [Hkv, R, D], v_cache [Hkv, R, Dv] -> [T, Hq, Dv] contiguous, or nullptr.
Tensor* cached_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Seen& seen,
                         const AttentionOptions& options);

// `rows` must be i64 [count], each in [0, capacity).
Status check_rows(const char* what, const Tensor& rows, int64_t count, int64_t capacity);

}  // namespace specc
