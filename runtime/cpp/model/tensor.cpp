#include "tensor.h"

#include <cstring>
#include <new>

#include "error.h"
#include "pool.h"

bool specc_tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    if (sizes[d] == 0) return true;
    if (sizes[d] != 1 && strides[d] != expected) return false;
    expected *= sizes[d];
  }
  return true;
}

namespace specc {
namespace {

struct Dtype {
  int32_t number;
  uint8_t bytes;
  const char* name;
};
// PyTorch's ScalarType numbers.
constexpr Dtype kDtypes[] = {
    {0, 1, "u8"},   {1, 1, "i8"},   {2, 2, "i16"},   {3, 4, "i32"},  {4, 8, "i64"},  {5, 2, "f16"}, {6, 4, "f32"},
    {7, 8, "f64"},  {8, 4, "c32"},  {9, 8, "c64"},   {10, 16, "c128"}, {11, 1, "bool"}, {15, 2, "bf16"},
    {23, 1, "f8_e5m2"}, {24, 1, "f8_e4m3fn"}, {25, 1, "f8_e5m2fnuz"}, {26, 1, "f8_e4m3fnuz"},
    {27, 2, "u16"}, {28, 4, "u32"}, {29, 8, "u64"}, {44, 1, "f8_e8m0fnu"}, {45, 1, "f4_e2m1fn_x2"},
};

const Dtype* find_dtype(int32_t number) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.number == number) return &dtype;
  }
  return nullptr;
}

Storage* new_storage(void* borrowed, size_t bytes) {
  const size_t owned = borrowed == nullptr ? bytes : 0;
  size_t granted = 0;
  void* block = pool_alloc(sizeof(Storage) + owned, &granted);
  if (block == nullptr) {
    fail("out of memory: a tensor of %zu bytes", bytes);
    return nullptr;
  }
  char* data = borrowed == nullptr ? static_cast<char*>(block) + sizeof(Storage) : static_cast<char*>(borrowed);
  return new (block) Storage{1, data, bytes, granted, nullptr, nullptr, nullptr, false};
}

void drop(Storage* storage) {
  if (storage->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  if (storage->forget != nullptr) storage->forget(storage->device);
  pool_free(storage, storage->granted);
}

constexpr size_t kHeaderBytes = (sizeof(Tensor) + 63) / 64 * 64;

// Takes over the caller's reference to `storage`.
Tensor* new_header(Storage* storage, int64_t offset, int32_t dtype, int32_t ndim, const int64_t* sizes,
                   const int64_t* strides) {
  size_t granted = 0;
  void* block = pool_alloc(kHeaderBytes, &granted);
  if (block == nullptr) {
    drop(storage);
    fail("out of memory: a tensor header");
    return nullptr;
  }
  Tensor* tensor = new (block) Tensor{1, dtype, ndim, storage, offset, {}, {}};
  for (int d = 0; d < ndim; d++) {
    tensor->sizes[d] = sizes[d];
    tensor->strides[d] = strides[d];
  }
  return tensor;
}

// Elements from the first to the last that the view touches; -1 with the error text set if it makes no sense.
int64_t span_of(int32_t dtype, int32_t ndim, const int64_t* sizes, const int64_t* strides) {
  if (dtype_size(dtype) == 0) {
    fail("dtype %d is not supported", dtype);
    return -1;
  }
  if (ndim < 0 || ndim > kMaxDims) {
    fail("a tensor of %d dimensions: at most %d are supported", ndim, kMaxDims);
    return -1;
  }
  int64_t last = 0;
  for (int d = 0; d < ndim; d++) {
    if (sizes[d] < 0 || strides[d] < 0) {
      fail("a tensor with a negative size or stride");
      return -1;
    }
    if (sizes[d] == 0) return 0;
    int64_t reach = 0;
    if (__builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) || __builtin_add_overflow(last, reach, &last) ||
        last > (int64_t{1} << 42)) {
      fail("a tensor too large to address");
      return -1;
    }
  }
  return last + 1;
}

}  // namespace

size_t dtype_size(int32_t dtype) {
  const Dtype* found = find_dtype(dtype);
  return found == nullptr ? 0 : found->bytes;
}

const char* dtype_name(int32_t dtype) {
  const Dtype* found = find_dtype(dtype);
  return found == nullptr ? "unknown dtype" : found->name;
}

void contiguous_strides(int32_t ndim, const int64_t* sizes, int64_t* strides) {
  int64_t stride = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    strides[d] = stride;
    stride *= sizes[d] > 0 ? sizes[d] : 1;
  }
}

Tensor* new_empty(int32_t dtype, int32_t ndim, const int64_t* sizes) {
  int64_t strides[kMaxDims] = {};
  if (ndim <= kMaxDims) contiguous_strides(ndim, sizes, strides);
  return new_empty_strided(dtype, ndim, sizes, strides);
}

Tensor* new_empty_strided(int32_t dtype, int32_t ndim, const int64_t* sizes, const int64_t* strides) {
  const int64_t span = span_of(dtype, ndim, sizes, strides);
  if (span < 0) return nullptr;
  Storage* storage = new_storage(nullptr, static_cast<size_t>(span) * dtype_size(dtype));
  return storage == nullptr ? nullptr : new_header(storage, 0, dtype, ndim, sizes, strides);
}

Tensor* new_borrowed(void* data, int64_t offset, int32_t dtype, int32_t ndim, const int64_t* sizes,
                     const int64_t* strides) {
  const int64_t span = span_of(dtype, ndim, sizes, strides);
  if (span < 0) return nullptr;
  static char nothing;  // a null pointer is legal for an empty tensor, and must not be taken for "owned"
  const size_t bytes = static_cast<size_t>(span + offset) * dtype_size(dtype);
  Storage* storage = new_storage(data == nullptr ? &nothing : data, bytes);
  return storage == nullptr ? nullptr : new_header(storage, offset, dtype, ndim, sizes, strides);
}

Tensor* new_view(const Tensor* base, int32_t dtype, int32_t ndim, const int64_t* sizes, const int64_t* strides,
                 int64_t offset) {
  const int64_t span = span_of(dtype, ndim, sizes, strides);
  if (span < 0) return nullptr;
  if (offset < 0 || static_cast<size_t>(offset + span) * dtype_size(dtype) > base->storage->bytes) {
    fail("a view reaches beyond its storage of %zu bytes", base->storage->bytes);
    return nullptr;
  }
  base->storage->references.fetch_add(1, std::memory_order_relaxed);
  return new_header(base->storage, offset, dtype, ndim, sizes, strides);
}

void rebind(Tensor* target, const Tensor* source) {
  source->storage->references.fetch_add(1, std::memory_order_relaxed);
  drop(target->storage);
  target->dtype = source->dtype;
  target->ndim = source->ndim;
  target->storage = source->storage;
  target->offset = source->offset;
  std::memcpy(target->sizes, source->sizes, sizeof target->sizes);
  std::memcpy(target->strides, source->strides, sizeof target->strides);
}

void retain(Tensor* tensor) { tensor->references.fetch_add(1, std::memory_order_relaxed); }

void release(Tensor* tensor) {
  if (tensor == nullptr || tensor->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  drop(tensor->storage);
  pool_free(tensor, kHeaderBytes);
}

void copy_elements(Tensor* target, const Tensor* source) {
  const size_t bytes = dtype_size(source->dtype);
  const int ndim = source->ndim;
  const int64_t count = source->numel();
  if (count == 0) return;
  char* to = target->begin();
  const char* from = source->begin();
  // The longest run of inner dimensions that both sides hold without gaps is copied at a stroke.
  int inner = ndim;
  int64_t run = 1;
  while (inner > 0 && (source->sizes[inner - 1] == 1 ||
                       (source->strides[inner - 1] == run && target->strides[inner - 1] == run))) {
    run *= source->sizes[--inner];
  }
  int64_t index[kMaxDims] = {};
  for (int64_t done = 0; done < count; done += run) {
    int64_t to_at = 0;
    int64_t from_at = 0;
    for (int d = 0; d < inner; d++) {
      to_at += index[d] * target->strides[d];
      from_at += index[d] * source->strides[d];
    }
    std::memmove(to + to_at * bytes, from + from_at * bytes, run * bytes);
    for (int d = inner - 1; d >= 0 && ++index[d] == source->sizes[d]; d--) index[d] = 0;
  }
}

}  // namespace specc
