// Tensor handles for leaves: making, viewing, asking, freeing. A leaf's AtenTensorHandle is our Tensor*.
#include <stdexcept>
#include <string>

#include "error.h"
#include "shim.h"
#include "tensor.h"

using specc::kOk;
using specc::Status;
using specc::Tensor;

namespace {

Status hand_out(Tensor* made, Tensor** result) {
  *result = made;
  return made == nullptr ? 1 : kOk;  // the maker has recorded why
}

Status need_cpu(int32_t device_type) {
  return device_type == 0 ? kOk : specc::fail("device type %d: only the CPU (0) is here", device_type);
}

}  // namespace

SPECC_SHIM(aoti_torch_empty_strided)
(int64_t ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type, int32_t,
 Tensor** result) -> Status {
  if (need_cpu(device_type) != kOk) return 1;
  return hand_out(specc::new_empty_strided(dtype, static_cast<int32_t>(ndim), sizes, strides), result);
}

SPECC_SHIM(aoti_torch_create_tensor_from_blob)
(void* data, int64_t ndim, const int64_t* sizes, const int64_t* strides, int64_t offset, int32_t dtype,
 int32_t device_type, int32_t, Tensor** result) -> Status {
  if (need_cpu(device_type) != kOk) return 1;
  return hand_out(specc::new_borrowed(data, offset, dtype, static_cast<int32_t>(ndim), sizes, strides), result);
}

SPECC_SHIM(aoti_torch_create_tensor_from_blob_v2)
(void* data, int64_t ndim, const int64_t* sizes, const int64_t* strides, int64_t offset, int32_t dtype,
 int32_t device_type, int32_t device_index, Tensor** result, int32_t layout, const uint8_t*, int64_t) -> Status {
  if (layout != 0) return specc::fail("a blob of layout %d: only strided tensors (0) are supported", layout);
  return aoti_torch_create_tensor_from_blob(data, ndim, sizes, strides, offset, dtype, device_type, device_index,
                                            result);
}

// The offset counts from the start of the storage, not from `base`, as in torch.
SPECC_SHIM(aoti_torch__reinterpret_tensor)
(Tensor* base, int64_t ndim, const int64_t* sizes, const int64_t* strides, int64_t offset, Tensor** result) -> Status {
  return hand_out(specc::new_view(base, base->dtype, static_cast<int32_t>(ndim), sizes, strides, offset), result);
}

SPECC_SHIM(aoti_torch__alloc_from_pool)
(Tensor* base, int64_t offset_bytes, int32_t dtype, int64_t ndim, const int64_t* sizes, const int64_t* strides,
 Tensor** result) -> Status {
  const int64_t size = static_cast<int64_t>(specc::dtype_size(dtype));
  if (size == 0 || offset_bytes % size != 0) return specc::fail("a misaligned tensor in a memory pool");
  return hand_out(specc::new_view(base, dtype, static_cast<int32_t>(ndim), sizes, strides, offset_bytes / size),
                  result);
}

SPECC_SHIM(aoti_torch_as_strided)
(Tensor* base, const int64_t* sizes, const int64_t* strides, Tensor** result) -> Status {
  return hand_out(specc::new_view(base, base->dtype, base->ndim, sizes, strides, base->offset), result);
}

SPECC_SHIM(aoti_torch_new_tensor_handle)(Tensor* tensor, Tensor** result) -> Status {
  return hand_out(
      specc::new_view(tensor, tensor->dtype, tensor->ndim, tensor->sizes, tensor->strides, tensor->offset), result);
}

SPECC_SHIM(aoti_torch_assign_tensors_out)(Tensor* source, Tensor** result) -> Status {
  return aoti_torch_new_tensor_handle(source, result);
}

SPECC_SHIM(aoti_torch_assign_tensors)(Tensor* source, Tensor* target) -> Status {
  specc::rebind(target, source);
  return kOk;
}

SPECC_SHIM(aoti_torch_delete_tensor_object)(Tensor* tensor) -> Status {
  specc::release(tensor);
  return kOk;
}

SPECC_SHIM(aoti_torch_get_data_ptr)(Tensor* tensor, void** result) -> Status {
  *result = tensor->begin();
  return kOk;
}

SPECC_SHIM(aoti_torch_get_storage_size)(Tensor* tensor, int64_t* result) -> Status {
  *result = static_cast<int64_t>(tensor->storage->bytes);
  return kOk;
}

SPECC_SHIM(aoti_torch_get_storage_numel)(Tensor* tensor, int64_t* result) -> Status {
  *result = static_cast<int64_t>(tensor->storage->bytes / specc::dtype_size(tensor->dtype));
  return kOk;
}

SPECC_SHIM(aoti_torch_get_storage_offset)(Tensor* tensor, int64_t* result) -> Status {
  *result = tensor->offset;
  return kOk;
}

SPECC_SHIM(aoti_torch_get_dim)(Tensor* tensor, int64_t* result) -> Status {
  *result = tensor->ndim;
  return kOk;
}

SPECC_SHIM(aoti_torch_get_numel)(Tensor* tensor, int64_t* result) -> Status {
  *result = tensor->numel();
  return kOk;
}

SPECC_SHIM(aoti_torch_get_sizes)(Tensor* tensor, int64_t** result) -> Status {
  *result = tensor->sizes;
  return kOk;
}

SPECC_SHIM(aoti_torch_get_strides)(Tensor* tensor, int64_t** result) -> Status {
  *result = tensor->strides;
  return kOk;
}

SPECC_SHIM(aoti_torch_get_size)(Tensor* tensor, int64_t dim, int64_t* result) -> Status {
  if (dim < 0) dim += tensor->ndim;
  if (dim < 0 || dim >= tensor->ndim) return specc::fail("dimension %ld of a %d-d tensor", (long)dim, tensor->ndim);
  *result = tensor->sizes[dim];
  return kOk;
}

SPECC_SHIM(aoti_torch_get_stride)(Tensor* tensor, int64_t dim, int64_t* result) -> Status {
  if (dim < 0) dim += tensor->ndim;
  if (dim < 0 || dim >= tensor->ndim) return specc::fail("dimension %ld of a %d-d tensor", (long)dim, tensor->ndim);
  *result = tensor->strides[dim];
  return kOk;
}

SPECC_SHIM(aoti_torch_get_dtype)(Tensor* tensor, int32_t* result) -> Status {
  *result = tensor->dtype;
  return kOk;
}

SPECC_SHIM(aoti_torch_get_device_type)(Tensor*, int32_t* result) -> Status {
  *result = 0;
  return kOk;
}

SPECC_SHIM(aoti_torch_get_device_index)(Tensor*, int32_t* result) -> Status {
  *result = -1;  // as torch says for the CPU
  return kOk;
}

SPECC_SHIM(aoti_torch_get_layout)(Tensor*, int32_t* result) -> Status {
  *result = 0;
  return kOk;
}

SPECC_SHIM(aoti_torch_is_contiguous)(Tensor* tensor, bool* result) -> Status {
  *result = tensor->is_contiguous();
  return kOk;
}

SPECC_SHIM(aoti_torch_is_defined)(Tensor* tensor, bool* result) -> Status {
  *result = tensor != nullptr;
  return kOk;
}


// As in libtorch, a failed check throws; the leaf's entry points catch it and return an error.
SPECC_SHIM(aoti_torch_check)(bool condition, const char*, const char*, uint32_t, const char* message) -> void {
  if (!condition) throw std::runtime_error(message);
}
