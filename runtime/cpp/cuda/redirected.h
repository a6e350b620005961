// The part of leaf_cuda.h that is the same for every leaf, and nearly all that a compiler reads of it: it is kept as the
// compiler has understood it (backends/toolchain.py). What leaves call of torch's shim that is the GPU's here, and headers
// of others that leaf.h includes.
#pragma once
#define aoti_torch_get_data_ptr specc_cuda_data
#define aoti_torch_empty_strided specc_cuda_empty
#define aoti_torch_clone_preserve_strides specc_cuda_clone

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/util/generic_math.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
