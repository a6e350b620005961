#include "cache.h"

#include <cstring>

#include "half.h"
#include "shim.h"

namespace specc {

Status check_rows(const char* what, const Tensor& rows, int64_t count, int64_t capacity) {
  if (rows.dtype != SPECC_I64 || rows.ndim != 1 || rows.sizes[0] != count) {
    return fail("%s: rows must be i64 [%ld]", what, (long)count);
  }
  for (int64_t t = 0; t < count; t++) {
    const int64_t row = rows.data<int64_t>()[t * rows.strides[0]];
    if (row < 0 || row >= capacity) {
      return fail("%s: row %ld is outside the cache of %ld", what, (long)row, (long)capacity);
    }
  }
  return kOk;
}

namespace {

// Rows from `first` on; of a shard, those that are not in it are passed over.
Status write_rows(Tensor& cache, const Tensor& x, const Tensor& rows, int64_t first, bool shard) {
  const bool half = cache.dtype == SPECC_F16 || cache.dtype == SPECC_BF16;
  const bool as_it_is = half && x.dtype == cache.dtype;  // rounded already, by who computed it
  if ((cache.dtype != SPECC_F32 && !half) || (x.dtype != SPECC_F32 && !as_it_is) || cache.ndim != 3 || x.ndim != 3 ||
      x.sizes[1] != cache.sizes[0] || x.sizes[2] != cache.sizes[2]) {
    return fail("cache_write: x [T, heads, size], f32 or of the cache's type, must fit the cache [heads, rows, size]");
  }
  const int64_t count = x.sizes[0];
  if (check_rows("cache_write", rows, count, shard ? INT64_MAX : cache.sizes[1]) != kOk) return 1;
  const int64_t size = cache.sizes[2], to_stride = cache.strides[2], from_stride = x.strides[2];
  const bool dense = !half && (size <= 1 || (to_stride == 1 && from_stride == 1));
  for (int64_t t = 0; t < count; t++) {
    const int64_t row = rows.data<int64_t>()[t * rows.strides[0]] - first;
    if (shard && (row < 0 || row >= cache.sizes[1])) continue;
    for (int64_t head = 0; head < cache.sizes[0]; head++) {
      const int64_t to = head * cache.strides[0] + row * cache.strides[1];
      const int64_t at = t * x.strides[0] + head * x.strides[1];
      if (as_it_is) {
        const uint16_t* halves = x.data<uint16_t>() + at;
        for (int64_t d = 0; d < size; d++) cache.data<uint16_t>()[to + d * to_stride] = halves[d * from_stride];
        continue;
      }
      const float* from = x.data<float>() + at;
      if (dense) {
        std::memcpy(cache.data<float>() + to, from, size * sizeof(float));
      } else if (half) {
        uint16_t* halves = cache.data<uint16_t>() + to;
        for (int64_t d = 0; d < size; d++) {
          const float value = from[d * from_stride];
          halves[d * to_stride] = cache.dtype == SPECC_F16 ? round_f16(value) : round_bf16(value);
        }
      } else {
        for (int64_t d = 0; d < size; d++) cache.data<float>()[to + d * to_stride] = from[d * from_stride];
      }
    }
  }
  return kOk;
}

}  // namespace

Status cache_write(Tensor& cache, const Tensor& x, const Tensor& rows) { return write_rows(cache, x, rows, 0, false); }

Status cache_write_shard(Tensor& cache, const Tensor& x, const Tensor& rows, int64_t first) {
  return write_rows(cache, x, rows, first, true);
}

Status cache_move(Tensor& cache, const Tensor& source, const Tensor& target) {
  if (cache.ndim != 3 || !cache.is_contiguous() || source.ndim != 1) {
    return fail("cache_move: the cache must be contiguous [heads, rows, size], source and target [N]");
  }
  const int64_t count = source.sizes[0];
  if (check_rows("cache_move", source, count, cache.sizes[1]) != kOk) return 1;
  if (check_rows("cache_move", target, count, cache.sizes[1]) != kOk) return 1;
  const int64_t held[] = {count, cache.sizes[2]};
  Tensor* copy = new_empty(cache.dtype, 2, held);
  if (copy == nullptr) return 1;
  const int64_t bytes = cache.sizes[2] * static_cast<int64_t>(dtype_size(cache.dtype));
  const auto row = [&](const Tensor& rows, int64_t i) { return rows.data<int64_t>()[i * rows.strides[0]] * bytes; };
  char* const copied = copy->storage->data;
  for (int64_t head = 0; head < cache.sizes[0]; head++) {
    char* const base = cache.begin() + head * cache.sizes[1] * bytes;
    const auto moves = [&](int64_t i) { return row(source, i) != row(target, i); };
    for (int64_t i = 0; i < count; i++) {
      if (moves(i)) std::memcpy(copied + i * bytes, base + row(source, i), bytes);
    }
    for (int64_t i = 0; i < count; i++) {
      if (moves(i)) std::memcpy(base + row(target, i), copied + i * bytes, bytes);
    }
  }
  release(copy);
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
(specc::Tensor* cache, specc::Tensor* x, specc::Tensor* rows, specc::Tensor**) -> specc::Status {
  return specc::cache_write(*cache, *x, *rows);
}
