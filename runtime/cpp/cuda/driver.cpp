#include "driver.h"

#include <dlfcn.h>
#include <string>

#include "core/error.h"

namespace specc {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";  // the driver's: the toolkit has a stub by another name

Cuda find_calls() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw Error(Code::NoGpu, "the artifact runs on a GPU, and NVIDIA's driver cannot be loaded")
        .found(reason != nullptr ? reason : kLibrary)
        .cure("install the driver (nvidia-smi then answers), or compile with --device cpu");
  }
  Cuda cuda;
  std::string missing;
#define SPECC_FIND(name, arguments)                                      \
  cuda.name = reinterpret_cast<decltype(cuda.name)>(dlsym(library, #name)); \
  if (cuda.name == nullptr) missing += std::string(missing.empty() ? "" : ", ") + #name;
  SPECC_CUDA_CALLS(SPECC_FIND)
#undef SPECC_FIND
  if (!missing.empty()) {
    throw Error(Code::NoGpu, "NVIDIA's driver is too old, or no such driver")
        .found("without " + missing)
        .cure("install a driver for CUDA 12 or later");
  }
  return cuda;
}

// CUresult of cuda.h: those that say more than that a call failed.
bool is_memory(CUresult result) { return result == 2; }                               // OUT_OF_MEMORY
bool is_no_gpu(CUresult result) { return result == 3 || (result >= 100 && result <= 102); }  // NOT_INITIALIZED, NO_DEVICE, ...
bool is_arch(CUresult result) { return result == 209 || result == 222; }  // NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION

}  // namespace

const Cuda& load_cuda() {
  static const Cuda cuda = find_calls();  // tried again if it throws
  return cuda;
}

void cuda_check(const Cuda& cuda, CUresult result, const char* call, const char* where) {
  if (result == 0) return;
  const char* name = nullptr;
  cuda.cuGetErrorName(result, &name);
  const std::string found =
      std::string(call) + ": " + std::to_string(result) + (name != nullptr ? std::string(" ") + name : "");
  if (is_memory(result)) {
    throw Error(Code::Memory, "the GPU has no memory for this")
        .where(where)
        .found(found)
        .cure("end what else runs on the GPU (nvidia-smi), or compile with a smaller --max-model-len");
  }
  if (is_no_gpu(result)) {
    throw Error(Code::NoGpu, "there is no GPU that this process may use")
        .where(where)
        .found(found)
        .cure("see nvidia-smi, and choose one with SPECC_CUDA_DEVICE");
  }
  if (is_arch(result)) {
    throw Error(Code::WrongDevice, "the GPU does not run the artifact's code")
        .where(where)
        .found(found)
        .cure("compile with --device cuda:sm_NN for this GPU");
  }
  throw Error(Code::Gpu, "the GPU or its driver failed")
      .where(where)
      .found(found)
      .cure("open the artifact again in a new process; if it stays, run compute-sanitizer on it and report what it says");
}

}  // namespace specc
