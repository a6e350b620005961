#include "gpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "core/error.h"

namespace specc {
namespace {

constexpr size_t kPinned = size_t{1} << 20;  // what goes up between two waits; more waits once more
constexpr size_t kSmallest = 512;

// Four sizes to a doubling: little is wasted, and what one call gave back fits the next.
size_t rounded(size_t bytes) {
  if (bytes <= kSmallest) return kSmallest;
  size_t step = kSmallest;
  while (step * 8 <= bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

// SASS of sm_8X runs on 8.Y with Y >= X; from 9.0 on, code may use what one capability alone has (sm_90a, sm_100a).
bool runs(int arch, int capability) {
  return arch / 10 == capability / 10 && (arch < 90 ? arch <= capability : arch == capability);
}

// What to compile for a GPU of this capability instead: of the architectures that specc knows, the last that runs on it.
std::string cure(int capability) {
  int best = 0;
  std::string all;
  for (const int* arch = specc_cuda_archs; *arch != 0; arch++) {
    if (runs(*arch, capability)) best = *arch;
    all += (all.empty() ? "sm_" : ", sm_") + std::to_string(*arch);
  }
  if (best != 0) return "compile with --device cuda:sm_" + std::to_string(best);
  return "run it on another GPU, or compile with --device cpu: specc builds no code for this one, only for " + all;
}

std::string dotted(int capability) { return std::to_string(capability / 10) + "." + std::to_string(capability % 10); }

}  // namespace

Gpu::Gpu(int ordinal, const char* arch) : cuda_(load_cuda()) {
  const std::string name = "GPU " + std::to_string(ordinal);
  check(cuda_.cuInit(0), "cuInit", name.c_str());
  int count = 0;
  check(cuda_.cuDeviceGetCount(&count), "cuDeviceGetCount", name.c_str());
  if (ordinal >= count) {
    throw Error(Code::NoGpu, "there is no such GPU")
        .where(name)
        .expected("0 to " + std::to_string(count - 1))
        .cure("see nvidia-smi, and choose one with SPECC_CUDA_DEVICE");
  }
  check(cuda_.cuDeviceGet(&device_, ordinal), "cuDeviceGet", name.c_str());
  int major = 0, minor = 0;
  check(cuda_.cuDeviceGetAttribute(&major, kCapabilityMajor, device_), "cuDeviceGetAttribute", name.c_str());
  check(cuda_.cuDeviceGetAttribute(&minor, kCapabilityMinor, device_), "cuDeviceGetAttribute", name.c_str());
  const int made_for = std::atoi(arch + std::strlen("sm_")), capability = 10 * major + minor;
  if (!runs(made_for, capability)) {
    char model[256] = "";
    cuda_.cuDeviceGetName(model, sizeof model, device_);
    throw Error(Code::WrongDevice, "the artifact is for another GPU")
        .where(name + (*model != '\0' ? std::string(", ") + model : ""))
        .expected("compute capability " + dotted(made_for) + " (" + arch + ")")
        .found(dotted(capability))
        .cure(cure(capability));
  }
  try {
    start(name.c_str());
  } catch (...) {
    close();
    throw;
  }
}

void Gpu::start(const char* name) {
  check(cuda_.cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain", name);
  enter();
  check(cuda_.cuStreamCreate(&stream_, kNonBlocking), "cuStreamCreate", name);
  void* memory = nullptr;
  check(cuda_.cuMemAllocHost_v2(&memory, kPinned), "cuMemAllocHost", name);
  pinned_ = static_cast<char*>(memory);
}

Gpu::~Gpu() { close(); }

void Gpu::close() noexcept {
  if (context_ == nullptr) return;
  cuda_.cuCtxSetCurrent(context_);
  if (stream_ != nullptr) cuda_.cuStreamSynchronize(stream_);
  launches_.clear(cuda_);
  drop_free();
  for (const auto& [code, module] : modules_) {
    if (module != nullptr) cuda_.cuModuleUnload(module);
  }
  if (pinned_ != nullptr) cuda_.cuMemFreeHost(pinned_);
  if (stream_ != nullptr) cuda_.cuStreamDestroy_v2(stream_);
  cuda_.cuDevicePrimaryCtxRelease_v2(device_);
}

void Gpu::drop_free() noexcept {
  for (const auto& [size, at] : free_) cuda_.cuMemFree_v2(at);
  free_.clear();
}

void Gpu::enter() { check(cuda_.cuCtxSetCurrent(context_), "cuCtxSetCurrent", "the GPU"); }

Block* Gpu::take(size_t bytes) {
  auto block = std::make_unique<Block>();
  block->bytes = bytes;
  block->granted = rounded(bytes);
  const auto found = free_.lower_bound({block->granted, 0});
  if (found != free_.end() && found->first == block->granted) {
    block->at = found->second;
    free_.erase(found);
  } else {
    CUresult result = cuda_.cuMemAlloc_v2(&block->at, block->granted);
    if (result != 0 && !free_.empty()) {  // what is kept in other sizes may be what is missing
      wait("memory");
      drop_free();
      result = cuda_.cuMemAlloc_v2(&block->at, block->granted);
    }
    check(result, "cuMemAlloc", (std::to_string(bytes) + " bytes").c_str());
  }
  return block.release();
}

void Gpu::give(Block* block) noexcept {
  std::free(block->host);
  try {
    free_.emplace(block->granted, block->at);
  } catch (const std::bad_alloc&) {
    // (Nothing can be launched without memory of the host either: what was kept back stays so, and fails there.)
    cuda_.cuStreamSynchronize(stream_);
    cuda_.cuMemFree_v2(block->at);
  }
  delete block;
}

void Gpu::zero(const Block& block) {
  flush();
  check(cuda_.cuMemsetD8Async(block.at, 0, block.bytes, stream_), "cuMemsetD8Async", "the state of a session");
}

void Gpu::wait(const char* where) {
  flush();
  check(cuda_.cuStreamSynchronize(stream_), "cuStreamSynchronize", where);
  pinned_used_ = 0;
}

// Of the pinned memory so many bytes that nothing under way uses.
char* Gpu::pinned(size_t bytes) {
  if (bytes > kPinned) return nullptr;
  if (pinned_used_ + bytes > kPinned) wait("inputs");
  char* place = pinned_ + pinned_used_;
  pinned_used_ += (bytes + 255) / 256 * 256;
  return place;
}

void Gpu::upload(CUdeviceptr to, const void* const* from, const size_t* bytes, const size_t* offsets, int count,
                 size_t total) {
  flush();
  char* staged = pinned(total);
  if (staged == nullptr) {
    for (int i = 0; i < count; i++) upload_once(to + offsets[i], from[i], bytes[i]);
    return;
  }
  for (int i = 0; i < count; i++) std::memcpy(staged + offsets[i], from[i], bytes[i]);
  check(cuda_.cuMemcpyHtoDAsync_v2(to, staged, total, stream_), "cuMemcpyHtoDAsync", "inputs");
}

// In our stream, as all is: the plain copy returns before memory that is not pinned has arrived, and our stream would not
// wait for it.
void Gpu::upload_once(CUdeviceptr to, const void* from, size_t bytes) {
  flush();
  check(cuda_.cuMemcpyHtoDAsync_v2(to, from, bytes, stream_), "cuMemcpyHtoDAsync", "a weight");
  wait("a weight");
}

void Gpu::copy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
  flush();
  check(cuda_.cuMemcpyDtoDAsync_v2(to, from, bytes, stream_), "cuMemcpyDtoDAsync", "a copy");
}

void Gpu::fetch(void* const* to, const CUdeviceptr* from, const size_t* bytes, int count) {
  flush();
  size_t total = 0;
  for (int i = 0; i < count; i++) total += (bytes[i] + 255) / 256 * 256;
  char* staged = pinned(total);  // null for logits of many rows: these go to memory that is not pinned
  char* place = staged;
  for (int i = 0; i < count; i++) {
    check(cuda_.cuMemcpyDtoHAsync_v2(staged != nullptr ? place : to[i], from[i], bytes[i], stream_), "cuMemcpyDtoHAsync",
          "results");
    place += (bytes[i] + 255) / 256 * 256;
  }
  wait("results");
  place = staged;
  for (int i = 0; i < count && staged != nullptr; i++) {
    std::memcpy(to[i], place, bytes[i]);
    place += (bytes[i] + 255) / 256 * 256;
  }
}

CUfunction Gpu::load(const void* cubin, const char* kernel, uint32_t shared_bytes) {
  CUmodule& module = modules_[cubin];
  CUfunction function = nullptr;
  if (module == nullptr) check(cuda_.cuModuleLoadData(&module, cubin), "cuModuleLoadData", kernel);
  check(cuda_.cuModuleGetFunction(&function, module, kernel), "cuModuleGetFunction", kernel);
  if (shared_bytes > 0) {
    check(cuda_.cuFuncSetAttribute(function, kDynamicSharedBytes, static_cast<int>(shared_bytes)), "cuFuncSetAttribute",
          kernel);
  }
  return function;
}

void Gpu::launch(CUfunction kernel, uint32_t x, uint32_t y, uint32_t z, uint32_t threads, uint32_t shared_bytes,
                 const Argument* arguments, uint32_t count) {
  launches_.add(kernel, x, y, z, threads, shared_bytes, arguments, count);
}

}  // namespace specc
