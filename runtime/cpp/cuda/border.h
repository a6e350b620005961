// Between plans and a GPU: what compiled leaves call, and the entries that carry values up and down.
#pragma once
#include "gpu.h"
#include "tensor.h"

namespace specc {

// The entry cuda.upload: values of the host -> the same on the GPU, by one copy.
int32_t run_upload(Tensor** in, int32_t n_in, Tensor** out, int32_t n_out);
// The entry cuda.fetch: values of the GPU -> the same here, by one wait.
int32_t run_fetch(Tensor** in, int32_t n_in, Tensor** out, int32_t n_out);

}  // namespace specc

// What leaves call (leaf_cuda.h). A status is 0, or the text is recorded.
extern "C" {
// Before a leaf runs: every input is on the GPU from now on; weights that are not go there for good, and what else is
// not is an error: it would be read as it was in the first round.
int32_t specc_cuda_enter(specc_tensor** in, int32_t n_in);
int32_t specc_cuda_data(specc_tensor* tensor, void** result);
int32_t specc_cuda_empty(int64_t ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,
                         int32_t device_index, specc_tensor** result);
int32_t specc_cuda_clone(specc_tensor* source, specc_tensor** result);
int32_t specc_cuda_load(const void* cubin, const char* kernel, uint32_t shared_bytes, CUfunction* result);
int32_t specc_cuda_launch(CUfunction kernel, uint32_t x, uint32_t y, uint32_t z, uint32_t threads, uint32_t shared_bytes,
                          const void* arguments, uint32_t count);  // these are specc::Argument
}
