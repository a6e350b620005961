// What a leaf that Inductor wrote for a GPU is compiled against: leaf.h, where a tensor's address is the GPU's, and
// kernels come out of the leaf itself. Needs no CUDA toolkit.
#pragma once
#include "redirected.h"
#define SPECC_LEAF_ENTER(in, n_in) specc_cuda_must(specc_cuda_enter(reinterpret_cast<struct specc_tensor**>(in), n_in))

#include <cstdint>

struct specc_tensor;

extern "C" {
typedef struct CUfunc_st* CUfunction;
typedef unsigned long long CUdeviceptr;
typedef void* cudaStream_t;  // there is one stream, and launching knows it

int32_t specc_cuda_enter(specc_tensor** in, int32_t n_in);
int32_t specc_cuda_load(const void* cubin, const char* kernel, uint32_t shared_bytes, CUfunction* result);
int32_t specc_cuda_launch(CUfunction kernel, uint32_t x, uint32_t y, uint32_t z, uint32_t threads, uint32_t shared_bytes,
                          const void* arguments, uint32_t count);
}

#include <stdexcept>

// What failed is recorded already; the leaf ends by an exception, as with torch's own checks.
static inline void specc_cuda_must(int32_t status) {
  if (status != 0) throw std::runtime_error("the GPU");
}

#include "leaf.h"

// An input at an odd address is copied: rare, and slower, but no reason to write to a terminal that is not ours.
#undef AOTI_TORCH_WARN
#define AOTI_TORCH_WARN(...)

namespace torch::aot_inductor {

struct AOTICudaStreamGuard {
  AOTICudaStreamGuard(cudaStream_t, int32_t) {}
};

}  // namespace torch::aot_inductor

static inline CUfunction loadKernel(const unsigned char* cubin, const char* kernel, uint32_t shared_bytes) {
  CUfunction function = nullptr;
  specc_cuda_must(specc_cuda_load(cubin, kernel, shared_bytes, &function));
  return function;
}

// As launches.h has it. The generated list of addresses is rewritten to one of these: copies need the sizes.
struct SpeccArgument {
  const void* at;
  uint32_t bytes;
};

template <size_t count>
static inline void launchKernel(CUfunction kernel, uint32_t x, uint32_t y, uint32_t z, uint32_t warps,
                                uint32_t shared_bytes, const SpeccArgument (&arguments)[count], cudaStream_t) {
  specc_cuda_must(specc_cuda_launch(kernel, x, y, z, 32 * warps, shared_bytes, arguments, count));
}
