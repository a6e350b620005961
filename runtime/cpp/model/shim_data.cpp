// What leaves do to tensors' elements outside compiled loops: copy, zero, clone, read or make a scalar.
#include <cstring>

#include "error.h"
#include "shim.h"
#include "tensor.h"

using specc::kOk;
using specc::Status;
using specc::Tensor;

namespace {

template <class T>
Status item(Tensor* tensor, int32_t dtype, T* result) {
  if (tensor->numel() != 1) return specc::fail("item of a tensor of %ld elements", (long)tensor->numel());
  if (tensor->dtype != dtype) {
    return specc::fail("item: the tensor is %s, not %s", specc::dtype_name(tensor->dtype), specc::dtype_name(dtype));
  }
  *result = *tensor->data<T>();
  return kOk;
}

template <class T>
Status scalar(T value, int32_t dtype, Tensor** result) {
  *result = specc::new_empty(dtype, 0, nullptr);
  if (*result == nullptr) return 1;
  *(*result)->data<T>() = value;
  return kOk;
}

Status clone_into(Tensor* made, Tensor* source, Tensor** result) {
  *result = made;
  if (made == nullptr) return 1;
  specc::copy_elements(made, source);
  return kOk;
}

bool is_dense(const Tensor& tensor) {  // no gaps and no overlaps, in any order of dimensions
  int64_t expected = 1;
  bool used[specc::kMaxDims] = {};
  for (int round = 0; round < tensor.ndim; round++) {
    int next = -1;
    for (int d = 0; d < tensor.ndim; d++) {
      if (!used[d] && (tensor.sizes[d] == 1 || tensor.strides[d] == expected)) next = d;
    }
    if (next < 0) return false;
    used[next] = true;
    expected *= tensor.sizes[next];
  }
  return true;
}

}  // namespace

SPECC_SHIM(aoti_torch_item_uint8)(Tensor* t, uint8_t* result) -> Status { return item(t, 0, result); }
SPECC_SHIM(aoti_torch_item_int8)(Tensor* t, int8_t* result) -> Status { return item(t, 1, result); }
SPECC_SHIM(aoti_torch_item_int16)(Tensor* t, int16_t* result) -> Status { return item(t, 2, result); }
SPECC_SHIM(aoti_torch_item_int32)(Tensor* t, int32_t* result) -> Status { return item(t, 3, result); }
SPECC_SHIM(aoti_torch_item_int64)(Tensor* t, int64_t* result) -> Status { return item(t, 4, result); }
SPECC_SHIM(aoti_torch_item_float32)(Tensor* t, float* result) -> Status { return item(t, 6, result); }
SPECC_SHIM(aoti_torch_item_float64)(Tensor* t, double* result) -> Status { return item(t, 7, result); }
SPECC_SHIM(aoti_torch_item_bool)(Tensor* t, bool* result) -> Status { return item(t, 11, result); }

SPECC_SHIM(aoti_torch_scalar_to_tensor_uint8)(uint8_t v, Tensor** r) -> Status { return scalar(v, 0, r); }
SPECC_SHIM(aoti_torch_scalar_to_tensor_int8)(int8_t v, Tensor** r) -> Status { return scalar(v, 1, r); }
SPECC_SHIM(aoti_torch_scalar_to_tensor_int16)(int16_t v, Tensor** r) -> Status { return scalar(v, 2, r); }
SPECC_SHIM(aoti_torch_scalar_to_tensor_int32)(int32_t v, Tensor** r) -> Status { return scalar(v, 3, r); }
SPECC_SHIM(aoti_torch_scalar_to_tensor_int64)(int64_t v, Tensor** r) -> Status { return scalar(v, 4, r); }
SPECC_SHIM(aoti_torch_scalar_to_tensor_float32)(float v, Tensor** r) -> Status { return scalar(v, 6, r); }
SPECC_SHIM(aoti_torch_scalar_to_tensor_float64)(double v, Tensor** r) -> Status { return scalar(v, 7, r); }
SPECC_SHIM(aoti_torch_scalar_to_tensor_bool)(bool v, Tensor** r) -> Status { return scalar(v, 11, r); }

SPECC_SHIM(aoti_torch_zero_)(Tensor* tensor) -> Status {
  const size_t bytes = specc::dtype_size(tensor->dtype);
  char* first = tensor->begin();
  if (tensor->is_contiguous()) {
    std::memset(first, 0, tensor->numel() * bytes);
    return kOk;
  }
  int64_t index[specc::kMaxDims] = {};
  for (int64_t left = tensor->numel(); left > 0; left--) {
    int64_t at = 0;
    for (int d = 0; d < tensor->ndim; d++) at += index[d] * tensor->strides[d];
    std::memset(first + at * static_cast<int64_t>(bytes), 0, bytes);
    for (int d = tensor->ndim - 1; d >= 0 && ++index[d] == tensor->sizes[d]; d--) index[d] = 0;
  }
  return kOk;
}

// Copies with broadcasting of size-1 and missing leading dimensions; no conversion of dtypes.
SPECC_SHIM(aoti_torch_copy_)(Tensor* target, Tensor* source, int32_t) -> Status {
  if (target->dtype != source->dtype) {
    return specc::fail("copy_ from %s to %s: no conversion here", specc::dtype_name(source->dtype),
                       specc::dtype_name(target->dtype));
  }
  const int missing = target->ndim - source->ndim;
  if (missing < 0) return specc::fail("copy_ from %d to %d dimensions", source->ndim, target->ndim);
  int64_t strides[specc::kMaxDims] = {};
  for (int d = missing; d < target->ndim; d++) {
    const int from = d - missing;
    if (source->sizes[from] != target->sizes[d] && source->sizes[from] != 1) {
      return specc::fail("copy_ of %ld elements into %ld in dimension %d", (long)source->sizes[from],
                         (long)target->sizes[d], d);
    }
    strides[d] = source->sizes[from] == 1 ? 0 : source->strides[from];
  }
  if (target->numel() == 0) return kOk;
  Tensor* spread = specc::new_view(source, source->dtype, target->ndim, target->sizes, strides, source->offset);
  if (spread == nullptr) return 1;
  specc::copy_elements(target, spread);
  specc::release(spread);
  return kOk;
}

SPECC_SHIM(aoti_torch_tensor_copy_)(Tensor* source, Tensor* target) -> Status {
  return aoti_torch_copy_(target, source, 0);
}

// torch keeps the strides of a dense tensor and makes any other contiguous.
SPECC_SHIM(aoti_torch_clone)(Tensor* source, Tensor** result) -> Status {
  Tensor* made = is_dense(*source)
                     ? specc::new_empty_strided(source->dtype, source->ndim, source->sizes, source->strides)
                     : specc::new_empty(source->dtype, source->ndim, source->sizes);
  return clone_into(made, source, result);
}

SPECC_SHIM(aoti_torch_clone_preserve_strides)(Tensor* source, Tensor** result) -> Status {
  return clone_into(specc::new_empty_strided(source->dtype, source->ndim, source->sizes, source->strides), source,
                    result);
}
