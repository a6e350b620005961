// The numbers by which leaves name devices, dtypes, layouts and memory formats (PyTorch's enums).
#include <cstddef>
#include <cstdint>

#include "shim.h"
#include "tensor.h"

#define CONSTANT(value) () -> int32_t { return value; }

SPECC_SHIM(aoti_torch_device_type_cpu) CONSTANT(0)
SPECC_SHIM(aoti_torch_device_type_cuda) CONSTANT(1)
SPECC_SHIM(aoti_torch_device_type_xpu) CONSTANT(12)
SPECC_SHIM(aoti_torch_device_type_mps) CONSTANT(13)
SPECC_SHIM(aoti_torch_device_type_meta) CONSTANT(14)
SPECC_SHIM(aoti_torch_device_type_privateuse1) CONSTANT(20)

SPECC_SHIM(aoti_torch_dtype_uint8) CONSTANT(0)
SPECC_SHIM(aoti_torch_dtype_int8) CONSTANT(1)
SPECC_SHIM(aoti_torch_dtype_int16) CONSTANT(2)
SPECC_SHIM(aoti_torch_dtype_int32) CONSTANT(3)
SPECC_SHIM(aoti_torch_dtype_int64) CONSTANT(4)
SPECC_SHIM(aoti_torch_dtype_float16) CONSTANT(5)
SPECC_SHIM(aoti_torch_dtype_float32) CONSTANT(6)
SPECC_SHIM(aoti_torch_dtype_float64) CONSTANT(7)
SPECC_SHIM(aoti_torch_dtype_complex32) CONSTANT(8)
SPECC_SHIM(aoti_torch_dtype_complex64) CONSTANT(9)
SPECC_SHIM(aoti_torch_dtype_complex128) CONSTANT(10)
SPECC_SHIM(aoti_torch_dtype_bool) CONSTANT(11)
SPECC_SHIM(aoti_torch_dtype_bfloat16) CONSTANT(15)
SPECC_SHIM(aoti_torch_dtype_float8_e5m2) CONSTANT(23)
SPECC_SHIM(aoti_torch_dtype_float8_e4m3fn) CONSTANT(24)
SPECC_SHIM(aoti_torch_dtype_float8_e5m2fnuz) CONSTANT(25)
SPECC_SHIM(aoti_torch_dtype_float8_e4m3fnuz) CONSTANT(26)
SPECC_SHIM(aoti_torch_dtype_uint16) CONSTANT(27)
SPECC_SHIM(aoti_torch_dtype_uint32) CONSTANT(28)
SPECC_SHIM(aoti_torch_dtype_uint64) CONSTANT(29)
SPECC_SHIM(aoti_torch_dtype_float8_e8m0fnu) CONSTANT(44)
SPECC_SHIM(aoti_torch_dtype_float4_e2m1fn_x2) CONSTANT(45)
SPECC_SHIM(aoti_torch_dtype_element_size)(int32_t dtype) -> size_t { return specc::dtype_size(dtype); }

SPECC_SHIM(aoti_torch_layout_strided) CONSTANT(0)
SPECC_SHIM(aoti_torch_memory_format_contiguous_format) CONSTANT(0)
SPECC_SHIM(aoti_torch_memory_format_preserve_format) CONSTANT(1)
