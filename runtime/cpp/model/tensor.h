// The counted strided tensor that compiled leaves see as AtenTensorHandle and the engine as specc_tensor*.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "specc_model.h"

namespace specc {

constexpr int kMaxDims = 8;

// Memory shared by the tensors that view it. Owned memory lies in the same pool block, right after this header.
struct alignas(64) Storage {
  std::atomic<int32_t> references;
  char* data;
  size_t bytes;
  size_t granted;  // of the pool block that holds this header (and the data, if owned)
  void* device;    // where a device holds what this stands for; then `data` is null, or a copy. Null: it is here
  void (*forget)(void* device);  // called with the last reference, if not null
  int32_t (*fetch)(Storage*);    // fills `data` from the device, if not null, which it then is; 0 on success
  bool constant;                 // a weight of the artifact: it never changes
};

size_t dtype_size(int32_t dtype);  // 0 for a dtype we do not know

}  // namespace specc

struct specc_tensor {
  std::atomic<int32_t> references;
  int32_t dtype;
  int32_t ndim;
  specc::Storage* storage;
  int64_t offset;  // in elements, from storage->data
  int64_t sizes[specc::kMaxDims];
  int64_t strides[specc::kMaxDims];  // in elements

  char* begin() const {  // its first element, of whatever type
    return storage->data + offset * static_cast<int64_t>(specc::dtype_size(dtype));
  }
  template <class T>
  T* data() const {
    return reinterpret_cast<T*>(storage->data) + offset;
  }
  int64_t numel() const {
    int64_t count = 1;
    for (int d = 0; d < ndim; d++) count *= sizes[d];
    return count;
  }
  int64_t size(int from_last) const { return sizes[ndim - from_last]; }
  bool is_contiguous() const;
};

namespace specc {

using Tensor = specc_tensor;

const char* dtype_name(int32_t dtype);

// All return nullptr with the error text set when memory is short or the arguments make no sense.
Tensor* new_empty(int32_t dtype, int32_t ndim, const int64_t* sizes);
Tensor* new_empty_strided(int32_t dtype, int32_t ndim, const int64_t* sizes, const int64_t* strides);
Tensor* new_borrowed(void* data, int64_t offset, int32_t dtype, int32_t ndim, const int64_t* sizes,
                     const int64_t* strides);
// Another view of the same storage; the offset counts from the storage's first element.
Tensor* new_view(const Tensor* base, int32_t dtype, int32_t ndim, const int64_t* sizes, const int64_t* strides,
                 int64_t offset);
// Makes `target` a second view of what `source` views; both keep their own handles.
void rebind(Tensor* target, const Tensor* source);

// Sees that the data is here. 0 on success.
inline int32_t fetch(Tensor* tensor) {
  Storage* storage = tensor->storage;
  return storage->fetch != nullptr ? storage->fetch(storage) : 0;
}

void retain(Tensor* tensor);
void release(Tensor* tensor);

void contiguous_strides(int32_t ndim, const int64_t* sizes, int64_t* strides);

// Copies elements (any strides) between tensors of equal shape and dtype.
void copy_elements(Tensor* target, const Tensor* source);

}  // namespace specc
