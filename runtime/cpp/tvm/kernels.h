// Leaves that TVM compiled: a list of kernels over numbered values, as the generated table has them.
//
// A kernel is called by tvm-ffi's C convention (tvm/ffi/c_api.h, TVMFFISafeCallType) with plain DLTensors. Nothing of TVM is
// there at run time: what its code calls back is in kernels.cpp, over the engine's threads and memory.
#pragma once
#include <tvm/ffi/c_api.h>

#include <cstdint>

#include "tensor.h"

namespace specc {

constexpr int64_t kRows = -1;  // in a shape: the rows of the call

struct KernelValue {
  int32_t dtype, ndim;
  int64_t shape[kMaxDims];
};

// One call. Of its arguments, inputs first, the last `n_out` are values that it makes; without a kernel, the second is
// a view of the first. `drop` lists values that nothing reads after it.
struct KernelStep {
  const char* name;
  TVMFFISafeCallType kernel;
  int32_t n_args, n_out;
  const int32_t* args;
  int32_t n_drop;
  const int32_t* drop;
};

struct KernelLeaf {
  const char* name;
  int32_t n_in, n_out, n_values, n_steps;
  const KernelValue* values;  // inputs first
  const uint8_t* written;     // of each input: it is state that a kernel writes to
  const KernelStep* steps;
  const int32_t* out;
  int32_t rows_input, rows_dim;  // where the number of rows is read; -1: nowhere
};

// What a generated leaf calls; inputs are released on success, as compiled leaves do.
int32_t run_kernels(const KernelLeaf& leaf, Tensor** in, int32_t n_in, Tensor** out, int32_t n_out);

}  // namespace specc
