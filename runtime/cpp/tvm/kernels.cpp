#include "kernels.h"

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "error.h"
#include "parallel.h"
#include "pool.h"

namespace specc {
namespace {

constexpr int32_t kMostValues = 512;
constexpr int32_t kMostArgs = 24;
constexpr uintptr_t kAlignment = 64;  // what generated code may take for granted

DLDataType dl_type(int32_t dtype) {
  const uint8_t bits = static_cast<uint8_t>(8 * dtype_size(dtype));
  switch (dtype) {
    case SPECC_BOOL: return {kDLBool, 8, 1};
    case SPECC_U8: return {kDLUInt, bits, 1};
    case SPECC_BF16: return {kDLBfloat, bits, 1};
    case SPECC_F16: case SPECC_F32: case SPECC_F64: return {kDLFloat, bits, 1};
    default: return {kDLInt, bits, 1};
  }
}

bool usable(const Tensor& tensor) {
  return tensor.is_contiguous() && reinterpret_cast<uintptr_t>(tensor.begin()) % kAlignment == 0;
}

DLTensor described(Tensor& tensor) {
  DLTensor made{};
  made.data = tensor.begin();
  made.device = {kDLCPU, 0};
  made.ndim = tensor.ndim;
  made.dtype = dl_type(tensor.dtype);
  made.shape = tensor.sizes;
  made.strides = tensor.strides;
  return made;
}

// The values of one run. Its own references are dropped with it.
class Run {
 public:
  Run(const KernelLeaf& leaf, int64_t rows) : leaf_(leaf), rows_(rows) {}
  ~Run() {
    for (int32_t i = 0; i < leaf_.n_values; i++) release(values_[i]);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // An input as kernels want it: contiguous and aligned. State is written in place, so it must be so already.
  Status take(int32_t index, Tensor* given) {
    const KernelValue& wanted = leaf_.values[index];
    if (given->dtype != wanted.dtype || given->ndim != wanted.ndim) {
      return fail("%s: input %d is a %d-d tensor of %s", leaf_.name, index, given->ndim, dtype_name(given->dtype));
    }
    if (usable(*given)) {
      retain(given);
      values_[index] = given;
      return kOk;
    }
    if (leaf_.written[index]) return fail("%s: state in input %d is not contiguous and aligned", leaf_.name, index);
    values_[index] = new_empty(given->dtype, given->ndim, given->sizes);
    if (values_[index] == nullptr) return 1;
    copy_elements(values_[index], given);
    return kOk;
  }

  Status play(const KernelStep& step) {
    if (step.kernel == nullptr) return view(step);
    DLTensor tensors[kMostArgs];
    TVMFFIAny args[kMostArgs] = {}, result = {};
    if (step.n_args > kMostArgs) return fail("%s: %s takes %d arguments", leaf_.name, step.name, step.n_args);
    for (int32_t i = 0; i < step.n_args; i++) {
      const int32_t value = step.args[i];
      if (i >= step.n_args - step.n_out && make(value) != kOk) return 1;
      tensors[i] = described(*values_[value]);
      args[i].type_index = kTVMFFIDLTensorPtr;
      args[i].v_ptr = &tensors[i];
    }
    if (step.kernel(nullptr, args, step.n_args, &result) != 0) {
      return fail_unless_told("%s: the kernel %s failed", leaf_.name, step.name);
    }
    return drop(step);
  }

  Tensor* give(int32_t index) {
    retain(values_[index]);
    return values_[index];
  }

 private:
  void shape_of(int32_t index, int64_t* sizes) const {
    const KernelValue& value = leaf_.values[index];
    for (int32_t d = 0; d < value.ndim; d++) sizes[d] = value.shape[d] == kRows ? rows_ : value.shape[d];
  }

  Status make(int32_t index) {
    int64_t sizes[kMaxDims];
    shape_of(index, sizes);
    values_[index] = new_empty(leaf_.values[index].dtype, leaf_.values[index].ndim, sizes);
    return values_[index] == nullptr ? 1 : kOk;
  }

  Status view(const KernelStep& step) {
    const int32_t index = step.args[1];
    const Tensor* base = values_[step.args[0]];
    int64_t sizes[kMaxDims], strides[kMaxDims];
    shape_of(index, sizes);
    contiguous_strides(leaf_.values[index].ndim, sizes, strides);
    values_[index] = new_view(base, base->dtype, leaf_.values[index].ndim, sizes, strides, base->offset);
    return values_[index] == nullptr ? 1 : drop(step);
  }

  Status drop(const KernelStep& step) {
    for (int32_t i = 0; i < step.n_drop; i++) {
      release(values_[step.drop[i]]);
      values_[step.drop[i]] = nullptr;
    }
    return kOk;
  }

  const KernelLeaf& leaf_;
  const int64_t rows_;
  Tensor* values_[kMostValues] = {};
};

}  // namespace

int32_t run_kernels(const KernelLeaf& leaf, Tensor** in, int32_t n_in, Tensor** out, int32_t n_out) {
  if (n_in != leaf.n_in || n_out != leaf.n_out || leaf.n_values > kMostValues) {
    return fail("%s: takes %d inputs and %d outputs, not %d and %d", leaf.name, leaf.n_in, leaf.n_out, n_in, n_out);
  }
  for (int32_t i = 0; i < n_out; i++) out[i] = nullptr;
  Run run(leaf, leaf.rows_input < 0 ? 0 : in[leaf.rows_input]->sizes[leaf.rows_dim]);
  for (int32_t i = 0; i < n_in; i++) {
    if (run.take(i, in[i]) != kOk) return 1;
  }
  for (int32_t i = 0; i < leaf.n_steps; i++) {
    if (run.play(leaf.steps[i]) != kOk) return 1;
  }
  for (int32_t i = 0; i < n_out; i++) out[i] = run.give(leaf.out[i]);
  for (int32_t i = 0; i < n_in; i++) {
    release(in[i]);
    in[i] = nullptr;
  }
  return kOk;
}

}  // namespace specc

// What TVM's code calls, by tvm/runtime/c_backend_api.h and tvm/ffi/c_api.h. A shared library of TVM's has the first three
// as pointers that its loader fills; here the linker does.
extern "C" {

struct TVMParallelGroupEnv {
  void* sync_handle;
  int32_t num_task;
};
using FTVMParallelLambda = int (*)(int task, TVMParallelGroupEnv* group, void* data);

// A parallel loop is cut into as many even pieces as there are tasks.
static int specc_tvm_parallel(FTVMParallelLambda body, void* data, int tasks) {
  const int64_t parts = tasks > 0 ? tasks : specc::host.threads > 1 ? specc::host.threads * specc::kSlices : 1;
  TVMParallelGroupEnv group{nullptr, static_cast<int32_t>(parts)};
  std::atomic<bool> failed{false};
  specc::parallel(parts, [&](int32_t part) {
    if (body(part, &group, data) != 0) failed = true;
  });
  return failed ? -1 : 0;
}

static void* specc_tvm_alloc(int, int, uint64_t bytes, int, int) {
  size_t granted = 0;
  // The block's size stands before it, on a line of its own.
  char* block = static_cast<char*>(specc::pool_alloc(bytes + specc::kAlignment, &granted));
  if (block == nullptr) {
    specc::fail("out of memory: %lu bytes for a kernel", static_cast<unsigned long>(bytes));
    return nullptr;
  }
  *reinterpret_cast<size_t*>(block) = granted;
  return block + specc::kAlignment;
}

static int specc_tvm_free(int, int, void* memory) {
  char* block = static_cast<char*>(memory) - specc::kAlignment;
  specc::pool_free(block, *reinterpret_cast<size_t*>(block));
  return 0;
}

void* __TVMBackendParallelLaunch = reinterpret_cast<void*>(&specc_tvm_parallel);
void* __TVMBackendAllocWorkspace = reinterpret_cast<void*>(&specc_tvm_alloc);
void* __TVMBackendFreeWorkspace = reinterpret_cast<void*>(&specc_tvm_free);

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  char text[400];
  int used = std::snprintf(text, sizeof text, "%s: ", kind);
  for (int32_t i = 0; i < count && used >= 0 && used < static_cast<int>(sizeof text); i++) {
    if (parts[i] != nullptr) used += std::snprintf(text + used, sizeof text - used, "%s", parts[i]);
  }
  specc::fail("%s", text);
}

}  // extern "C"
