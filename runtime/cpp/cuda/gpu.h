// One GPU: its context, one stream that everything runs on in order, and memory that is asked for once and kept.
#pragma once
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "driver.h"
#include "launches.h"

extern const char specc_cuda_arch[];  // "sm_90": what the artifact is for; in the generated table
extern const int specc_cuda_archs[];  // 80, 86, ..., 0: all that specc compiles for

namespace specc {

// Memory of the GPU behind a tensor. `host` is its copy here, once somebody fetched it.
struct Block {
  CUdeviceptr at = 0;
  size_t bytes = 0, granted = 0;
  char* host = nullptr;
};

// All calls come one at a time, from any thread. Failures are Errors of core/error.h.
class Gpu {
 public:
  // `ordinal` as nvidia-smi counts; `arch` as in sm_90. Throws Error: NoGpu, or WrongDevice for one of another capability.
  Gpu(int ordinal, const char* arch);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  void enter();  // the calling thread uses this GPU

  // Memory that is given back may be taken again at once: what still reads it runs before what is launched later. Of
  // what fits, the lowest is taken: calls that are alike get the same places, and so the same launches.
  Block* take(size_t bytes);
  void give(Block* block) noexcept;
  void zero(const Block& block);

  // From memory that may change after the call: it is copied first. Waits only when what is pinned is full.
  void upload(CUdeviceptr to, const void* const* from, const size_t* bytes, const size_t* offsets, int count, size_t total);
  // Weights: large, once. Waits.
  void upload_once(CUdeviceptr to, const void* from, size_t bytes);
  void copy(CUdeviceptr to, CUdeviceptr from, size_t bytes);
  // Waits once for all of them.
  void fetch(void* const* to, const CUdeviceptr* from, const size_t* bytes, int count);

  CUfunction load(const void* cubin, const char* kernel, uint32_t shared_bytes);
  // Kept back until the GPU is asked for something else: so failures show there.
  void launch(CUfunction kernel, uint32_t x, uint32_t y, uint32_t z, uint32_t threads, uint32_t shared_bytes,
              const Argument* arguments, uint32_t count);

 private:
  void start(const char* name);
  void close() noexcept;
  void drop_free() noexcept;
  char* pinned(size_t bytes);
  void wait(const char* where);
  void flush() { launches_.flush(cuda_, stream_); }
  void check(CUresult result, const char* call, const char* where) const { cuda_check(cuda_, result, call, where); }

  const Cuda& cuda_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  char* pinned_ = nullptr;
  size_t pinned_used_ = 0;
  std::map<const void*, CUmodule> modules_;  // by their code
  std::set<std::pair<size_t, CUdeviceptr>> free_;  // by size
  Launches launches_;
};

}  // namespace specc
