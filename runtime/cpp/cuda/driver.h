// The CUDA driver's calls that specc makes, found when an artifact is opened: one is made, copied and inspected where
// there is no GPU. Types and numbers are those of NVIDIA's cuda.h, declared anew so that compiling needs no CUDA toolkit.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {
typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st* CUcontext;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;
typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphExec_st* CUgraphExec;
typedef unsigned long long CUdeviceptr;
}

namespace specc {

constexpr int kCapabilityMajor = 75, kCapabilityMinor = 76;  // CUdevice_attribute
constexpr int kDynamicSharedBytes = 8;                       // CUfunction_attribute
constexpr unsigned kNonBlocking = 1;                         // CUstream_flags

constexpr int kCaptureThread = 1;                            // CUstreamCaptureMode: other threads' calls are no part of it

// name(arguments), as libcuda exports it: _v2 is what cuda.h calls by the plain name.
#define SPECC_CUDA_CALLS(call)                                                                        \
  call(cuInit, (unsigned))                                                                            \
  call(cuGetErrorName, (CUresult, const char**))                                                      \
  call(cuDeviceGetCount, (int*))                                                                      \
  call(cuDeviceGet, (CUdevice*, int))                                                                 \
  call(cuDeviceGetName, (char*, int, CUdevice))                                                       \
  call(cuDeviceGetAttribute, (int*, int, CUdevice))                                                   \
  call(cuDevicePrimaryCtxRetain, (CUcontext*, CUdevice))                                              \
  call(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                      \
  call(cuCtxSetCurrent, (CUcontext))                                                                  \
  call(cuStreamCreate, (CUstream*, unsigned))                                                         \
  call(cuStreamDestroy_v2, (CUstream))                                                                \
  call(cuStreamSynchronize, (CUstream))                                                               \
  call(cuMemAlloc_v2, (CUdeviceptr*, size_t))                                                         \
  call(cuMemFree_v2, (CUdeviceptr))                                                                   \
  call(cuMemAllocHost_v2, (void**, size_t))                                                           \
  call(cuMemFreeHost, (void*))                                                                        \
  call(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                               \
  call(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, size_t, CUstream))                            \
  call(cuMemcpyDtoHAsync_v2, (void*, CUdeviceptr, size_t, CUstream))                                  \
  call(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                            \
  call(cuModuleLoadData, (CUmodule*, const void*))                                                    \
  call(cuModuleUnload, (CUmodule))                                                                    \
  call(cuModuleGetFunction, (CUfunction*, CUmodule, const char*))                                     \
  call(cuFuncSetAttribute, (CUfunction, int, int))                                                    \
  call(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                        CUstream, void**, void**))                                                        \
  call(cuStreamBeginCapture_v2, (CUstream, int))                                                      \
  call(cuStreamEndCapture, (CUstream, CUgraph*))                                                      \
  call(cuGraphInstantiateWithFlags, (CUgraphExec*, CUgraph, unsigned long long))                      \
  call(cuGraphLaunch, (CUgraphExec, CUstream))                                                        \
  call(cuGraphDestroy, (CUgraph))                                                                     \
  call(cuGraphExecDestroy, (CUgraphExec))

struct Cuda {
#define SPECC_MEMBER(name, arguments) CUresult(*name) arguments = nullptr;
  SPECC_CUDA_CALLS(SPECC_MEMBER)
#undef SPECC_MEMBER
};

// What the driver library of this machine offers; it stays loaded. Throws Error(NoGpu).
const Cuda& load_cuda();

// Throws what a failed call means; nothing for 0. `call` is the function, `where` what it was for.
void cuda_check(const Cuda& cuda, CUresult result, const char* call, const char* where);

}  // namespace specc
