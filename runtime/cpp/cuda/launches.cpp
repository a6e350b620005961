#include "launches.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace specc {
namespace {

constexpr size_t kKnown = 64;  // K of a session each, and lengths of prompts; a graph of 300 kernels takes about 1 MB
constexpr size_t kWords = 5;   // before the arguments of a launch
constexpr char kWhere[] = "a round's launches";

}  // namespace

void Launches::add(CUfunction kernel, uint32_t x, uint32_t y, uint32_t z, uint32_t threads, uint32_t shared_bytes,
                   const Argument* arguments, uint32_t count) {
  const auto pair = [](uint32_t low, uint32_t high) { return uint64_t{low} | uint64_t{high} << 32; };
  words_.insert(words_.end(), {reinterpret_cast<uint64_t>(kernel), pair(x, y), pair(z, threads), shared_bytes, count});
  for (uint32_t i = 0; i < count; i++) {
    uint64_t word = 0;
    std::memcpy(&word, arguments[i].at, arguments[i].bytes);
    words_.push_back(word);
  }
}

void Launches::flush(const Cuda& cuda, CUstream stream) {
  if (words_.empty()) return;
  const Words words = std::exchange(words_, {});
  words_.reserve(words.size());
  auto found = std::find_if(known_.begin(), known_.end(), [&](const Recorded& r) { return r.words == words; });
  if (found == known_.end()) {
    play(cuda, stream, words);
    if (known_.size() == kKnown) forget_oldest(cuda);
    known_.push_front({words});
    return;
  }
  known_.splice(known_.begin(), known_, found);
  if (found->graph == nullptr) found->graph = record(cuda, stream, words);
  cuda_check(cuda, cuda.cuGraphLaunch(found->graph, stream), "cuGraphLaunch", kWhere);
}

void Launches::play(const Cuda& cuda, CUstream stream, const Words& words) {
  std::vector<void*> arguments;
  for (size_t at = 0; at < words.size(); at += kWords + words[at + 4]) {
    arguments.clear();
    for (size_t i = 0; i < words[at + 4]; i++) arguments.push_back(const_cast<uint64_t*>(&words[at + kWords + i]));
    arguments.push_back(nullptr);  // the driver knows how many there are; its double does not
    const auto low = [&](size_t i) { return static_cast<uint32_t>(words[at + i]); };
    const auto high = [&](size_t i) { return static_cast<uint32_t>(words[at + i] >> 32); };
    const CUresult result =
        cuda.cuLaunchKernel(reinterpret_cast<CUfunction>(words[at]), low(1), high(1), low(2), high(2), 1, 1, low(3),
                            stream, arguments.data(), nullptr);
    cuda_check(cuda, result, "cuLaunchKernel", kWhere);
  }
}

CUgraphExec Launches::record(const Cuda& cuda, CUstream stream, const Words& words) {
  CUgraph graph = nullptr;
  CUgraphExec made = nullptr;
  cuda_check(cuda, cuda.cuStreamBeginCapture_v2(stream, kCaptureThread), "cuStreamBeginCapture", kWhere);
  try {
    play(cuda, stream, words);
  } catch (...) {
    cuda.cuStreamEndCapture(stream, &graph);
    if (graph != nullptr) cuda.cuGraphDestroy(graph);
    throw;
  }
  cuda_check(cuda, cuda.cuStreamEndCapture(stream, &graph), "cuStreamEndCapture", kWhere);
  const CUresult result = cuda.cuGraphInstantiateWithFlags(&made, graph, 0);
  cuda.cuGraphDestroy(graph);
  cuda_check(cuda, result, "cuGraphInstantiate", kWhere);
  return made;
}

void Launches::forget_oldest(const Cuda& cuda) noexcept {
  if (known_.back().graph != nullptr) cuda.cuGraphExecDestroy(known_.back().graph);
  known_.pop_back();
}

void Launches::clear(const Cuda& cuda) noexcept {
  words_.clear();
  while (!known_.empty()) forget_oldest(cuda);
}

}  // namespace specc
