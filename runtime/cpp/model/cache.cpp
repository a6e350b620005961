#include "cache.h"

#include <cstring>

#include "shim.h"

namespace specc {

Status check_positions(const char* what, const Tensor& positions, int64_t rows, int64_t capacity) {
  if (positions.dtype != SPECC_I64 || positions.ndim != 1 || positions.sizes[0] != rows) {
    return fail("%s: positions must be i64 [%ld]", what, (long)rows);
  }
  for (int64_t t = 0; t < rows; t++) {
    const int64_t position = positions.data<int64_t>()[t * positions.strides[0]];
    if (position < 0 || position >= capacity) {
      return fail("%s: position %ld is outside the cache of %ld", what, (long)position, (long)capacity);
    }
  }
  return kOk;
}

Status cache_write(Tensor& cache, const Tensor& rows, const Tensor& positions) {
  if (cache.dtype != SPECC_F32 || rows.dtype != SPECC_F32 || cache.ndim != 3 || rows.ndim != 3 ||
      rows.sizes[1] != cache.sizes[0] || rows.sizes[2] != cache.sizes[2]) {
    return fail("cache_write: rows [T, heads, size] must fit the cache [heads, positions, size], both f32");
  }
  const int64_t count = rows.sizes[0];
  if (check_positions("cache_write", positions, count, cache.sizes[1]) != kOk) return 1;
  const int64_t size = cache.sizes[2];
  const bool dense = size <= 1 || (cache.strides[2] == 1 && rows.strides[2] == 1);
  for (int64_t t = 0; t < count; t++) {
    const int64_t position = positions.data<int64_t>()[t * positions.strides[0]];
    for (int64_t head = 0; head < cache.sizes[0]; head++) {
      float* to = cache.data<float>() + head * cache.strides[0] + position * cache.strides[1];
      const float* from = rows.data<float>() + t * rows.strides[0] + head * rows.strides[1];
      if (dense) {
        std::memcpy(to, from, size * sizeof(float));
      } else {
        for (int64_t d = 0; d < size; d++) to[d * cache.strides[2]] = from[d * rows.strides[2]];
      }
    }
  }
  return kOk;
}

Status cache_copy(const Tensor& x, Tensor& state) {
  bool fits = x.ndim >= 1 && x.ndim == state.ndim && x.dtype == state.dtype && x.sizes[0] <= state.sizes[0];
  for (int d = 1; fits && d < x.ndim; d++) fits = x.sizes[d] == state.sizes[d];
  if (!fits) return fail("cache_copy: the rows do not fit the state");
  int64_t sizes[kMaxDims];
  for (int d = 0; d < x.ndim; d++) sizes[d] = x.sizes[d];
  Tensor* target = new_view(&state, state.dtype, state.ndim, sizes, state.strides, state.offset);
  if (target == nullptr) return 1;
  copy_elements(target, &x);
  release(target);
  return kOk;
}

}  // namespace specc

// Inductor hands a place for a result even to operators that return nothing (2.13 passes nullptr).
SPECC_SHIM(aoti_torch_cpu_cache_write)
(specc::Tensor* cache, specc::Tensor* rows, specc::Tensor* positions, specc::Tensor**) -> specc::Status {
  return specc::cache_write(*cache, *rows, *positions);
}
