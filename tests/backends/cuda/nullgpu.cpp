// A double of NVIDIA's driver library: memory of the GPU is the host's, with a page behind each piece that nobody may
// touch, and a launch is counted and handed to whoever asked for it. Stricter than the original where it can be:
// what is freed must be known, a cubin must be one for this GPU, and a kernel must be in it.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "driver.h"

namespace {

struct Kernel {
  const unsigned char* cubin;
  std::string name;
};

struct Launch {
  const Kernel* kernel;
  unsigned grid[3];
  std::vector<unsigned long long> arguments;
};
using Graph = std::vector<Launch>;

typedef void (*OnLaunch)(const void* cubin, const char* kernel, const unsigned* grid, void** arguments);

std::map<std::string, long long> counts;
std::map<CUdeviceptr, size_t> memory;
OnLaunch on_launch = nullptr;
int capability = 90, failing = 0;
long long held = 0;  // contexts, streams, modules and pieces of pinned memory
std::string failing_call;
Graph* capturing = nullptr;

// Between the begin and the end of a capture only launches are allowed.
bool fails(const char* call) {
  counts[call]++;
  if (capturing != nullptr && std::strcmp(call, "cuLaunchKernel") != 0 && std::strcmp(call, "cuStreamEndCapture") != 0) {
    failing = 900;
    return true;
  }
  return failing_call == call;
}

void play(const Launch& launch) {
  std::vector<void*> arguments;
  for (const auto& word : launch.arguments) arguments.push_back(const_cast<unsigned long long*>(&word));
  if (on_launch != nullptr) on_launch(launch.kernel->cubin, launch.kernel->name.c_str(), launch.grid, arguments.data());
}

// ELF64: e_machine at 18, e_shoff at 40, e_flags at 48, e_shentsize, e_shnum and e_shstrndx from 58.
template <class T>
T at(const unsigned char* image, size_t offset) {
  T value;
  std::memcpy(&value, image + offset, sizeof value);
  return value;
}

bool is_cubin(const unsigned char* image) {
  return std::memcmp(image, "\x7f" "ELF", 4) == 0 && at<uint16_t>(image, 18) == 190;
}

// The architecture: in the second byte of the flags since ABI 8 of NVIDIA's ELF, in the first before.
int arch_of(const unsigned char* image) {
  const uint32_t flags = at<uint32_t>(image, 48);
  return image[8] >= 8 ? (flags >> 8) & 0xff : flags & 0xff;
}

bool has_kernel(const unsigned char* image, const char* name) {
  const auto table = at<uint64_t>(image, 40);
  const auto each = at<uint16_t>(image, 58), count = at<uint16_t>(image, 60), names = at<uint16_t>(image, 62);
  const auto strings = at<uint64_t>(image, table + static_cast<size_t>(names) * each + 24);
  const std::string wanted = std::string(".text.") + name;
  for (int i = 0; i < count; i++) {
    const auto section = table + static_cast<size_t>(i) * each;
    if (wanted == reinterpret_cast<const char*>(image) + strings + at<uint32_t>(image, section)) return true;
  }
  return false;
}

size_t page() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

#define CALL(name, ...)                   \
  CUresult name(__VA_ARGS__) {            \
    if (fails(#name)) return failing;

extern "C" {
void nullgpu_on_launch(OnLaunch body) { on_launch = body; }
void nullgpu_capability(int value) { capability = value; }
void nullgpu_fail(const char* call, int result) { failing_call = call, failing = result; }
long long nullgpu_count(const char* call) { return counts[call]; }
long long nullgpu_living() { return static_cast<long long>(memory.size()) + held; }

CALL(cuInit, unsigned) return 0; }
CUresult cuGetErrorName(CUresult result, const char** name) { *name = result == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_X"; return 0; }
CALL(cuDeviceGetCount, int* count) *count = 2; return 0; }
CALL(cuDeviceGet, CUdevice* device, int ordinal) *device = ordinal; return 0; }
CALL(cuDeviceGetName, char* name, int size, CUdevice device)
  std::snprintf(name, static_cast<size_t>(size), "Null GPU %d", device);
  return 0;
}
CALL(cuDeviceGetAttribute, int* value, int attribute, CUdevice)
  *value = attribute == specc::kCapabilityMajor ? capability / 10 : capability % 10;
  return 0;
}
CALL(cuDevicePrimaryCtxRetain, CUcontext* context, CUdevice) held++; *context = reinterpret_cast<CUcontext>(&counts); return 0; }
CALL(cuDevicePrimaryCtxRelease_v2, CUdevice) held--; return 0; }
CALL(cuCtxSetCurrent, CUcontext) return 0; }
CALL(cuStreamCreate, CUstream* stream, unsigned) held++; *stream = reinterpret_cast<CUstream>(&counts); return 0; }
CALL(cuStreamDestroy_v2, CUstream) held--; return 0; }
CALL(cuStreamSynchronize, CUstream) return 0; }
CALL(cuMemAlloc_v2, CUdeviceptr* made, size_t bytes)
  if (bytes % 256 != 0) return 1;
  const size_t whole = (bytes + page() - 1) / page() * page();
  void* memory_ = mmap(nullptr, whole + page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory_ == MAP_FAILED) return 2;
  mprotect(static_cast<char*>(memory_) + whole, page(), PROT_NONE);
  char* begin = static_cast<char*>(memory_) + whole - bytes;
  std::memset(begin, 0xA5, bytes);  // nobody may rely on zeros
  *made = reinterpret_cast<CUdeviceptr>(begin);
  memory[*made] = bytes;
  return 0;
}
CALL(cuMemFree_v2, CUdeviceptr piece)
  const auto found = memory.find(piece);
  if (found == memory.end()) return 1;
  const size_t whole = (found->second + page() - 1) / page() * page();
  munmap(reinterpret_cast<char*>(piece + found->second - whole), whole + page());
  memory.erase(found);
  return 0;
}
CALL(cuMemAllocHost_v2, void** made, size_t bytes) held++; *made = std::malloc(bytes); return 0; }
CALL(cuMemFreeHost, void* piece) held--; std::free(piece); return 0; }
CALL(cuMemsetD8Async, CUdeviceptr to, unsigned char value, size_t bytes, CUstream)
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return 0;
}
CALL(cuMemcpyHtoDAsync_v2, CUdeviceptr to, const void* from, size_t bytes, CUstream)
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
CALL(cuMemcpyDtoHAsync_v2, void* to, CUdeviceptr from, size_t bytes, CUstream)
  std::memcpy(to, reinterpret_cast<void*>(from), bytes);
  return 0;
}
CALL(cuMemcpyDtoDAsync_v2, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream)
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
  return 0;
}
CALL(cuModuleLoadData, CUmodule* module, const void* image)
  const auto* cubin = static_cast<const unsigned char*>(image);
  if (!is_cubin(cubin)) return 200;
  if (arch_of(cubin) != capability) return 209;
  held++;
  *module = reinterpret_cast<CUmodule>(const_cast<unsigned char*>(cubin));
  return 0;
}
CALL(cuModuleUnload, CUmodule) held--; return 0; }
CALL(cuModuleGetFunction, CUfunction* kernel, CUmodule module, const char* name)
  const auto* cubin = reinterpret_cast<const unsigned char*>(module);
  if (!has_kernel(cubin, name)) return 500;
  *kernel = reinterpret_cast<CUfunction>(new Kernel{cubin, name});
  return 0;
}
CALL(cuFuncSetAttribute, CUfunction, int, int) return 0; }
CALL(cuLaunchKernel, CUfunction kernel, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned,
     unsigned, CUstream, void** arguments, void**)
  Launch launch{reinterpret_cast<const Kernel*>(kernel), {x, y, z}, {}};
  if (x == 0 || y == 0 || z == 0 || threads == 0 || threads > 1024) return 1;
  for (void** argument = arguments; *argument != nullptr; argument++) {  // the driver copies them as well
    launch.arguments.push_back(*static_cast<unsigned long long*>(*argument));
  }
  if (capturing != nullptr) {
    capturing->push_back(launch);
  } else {
    play(launch);
  }
  return 0;
}
CALL(cuStreamBeginCapture_v2, CUstream, int) capturing = new Graph; return 0; }
CALL(cuStreamEndCapture, CUstream, CUgraph* made)
  if (capturing == nullptr) return 901;
  held++;
  *made = reinterpret_cast<CUgraph>(capturing);
  capturing = nullptr;
  return 0;
}
CALL(cuGraphInstantiateWithFlags, CUgraphExec* made, CUgraph graph, unsigned long long)
  held++;
  *made = reinterpret_cast<CUgraphExec>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return 0;
}
CALL(cuGraphLaunch, CUgraphExec graph, CUstream)
  for (const Launch& launch : *reinterpret_cast<Graph*>(graph)) play(launch);
  return 0;
}
CALL(cuGraphDestroy, CUgraph graph) held--; delete reinterpret_cast<Graph*>(graph); return 0; }
CALL(cuGraphExecDestroy, CUgraphExec graph) held--; delete reinterpret_cast<Graph*>(graph); return 0; }
}
