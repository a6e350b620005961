// Key and value caches: f32 [kv heads, positions, head size], written in place.
#pragma once
#include "error.h"
#include "tensor.h"

namespace specc {

// cache[:, positions[t], :] := rows[t]. A failed call has written nothing.
Status cache_write(Tensor& cache, const Tensor& rows, const Tensor& positions);

// state[0:T] := x, for buffers of rows.
Status cache_copy(const Tensor& x, Tensor& state);

// What cached_attention is told besides its tensors.
struct AttentionOptions {
  double scale = 1;
  int64_t window = 0;   // row t sees positions[t]-window < j <= positions[t]; 0: all of them
  double softcap = 0;   // scores become softcap * tanh(score / softcap); 0: unchanged
  const Tensor* sinks = nullptr;  // [query heads]: a logit that only adds to the softmax's denominator
};

// q [T, Hq, D], k_cache [Hkv, S, D], v_cache [Hkv, S, Dv], positions i64 [T] -> [T, Hq, Dv] contiguous, or nullptr.
Tensor* cached_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& positions,
                         const AttentionOptions& options);

// Positions must be i64 [rows], each in [0, capacity).
Status check_positions(const char* what, const Tensor& positions, int64_t rows, int64_t capacity);

}  // namespace specc
