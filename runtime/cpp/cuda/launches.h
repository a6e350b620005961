// Launches that are kept back until something else is asked of the GPU, so that those of a whole round, which are the same
// each time, become one.
#pragma once
#include <list>
#include <vector>

#include "driver.h"

namespace specc {

// One argument of a kernel: where it is, and its bytes, at most eight.
struct Argument {
  const void* at;
  uint32_t bytes;
};

class Launches {
 public:
  // Takes copies of the arguments.
  void add(CUfunction kernel, uint32_t x, uint32_t y, uint32_t z, uint32_t threads, uint32_t shared_bytes,
           const Argument* arguments, uint32_t count);

  // Launches in `stream` what was added, and forgets it: kernel by kernel what is new, as one CUDA graph, recorded then,
  // what was launched before with the same arguments. Throws Error.
  void flush(const Cuda& cuda, CUstream stream);

  // Forgets what was added, and destroys the graphs.
  void clear(const Cuda& cuda) noexcept;

 private:
  // For each launch its kernel, grid, threads, shared bytes and number of arguments in five words, then these.
  using Words = std::vector<uint64_t>;

  struct Recorded {
    Words words;
    CUgraphExec graph = nullptr;  // from the second time on
  };

  static void play(const Cuda& cuda, CUstream stream, const Words& words);
  static CUgraphExec record(const Cuda& cuda, CUstream stream, const Words& words);
  void forget_oldest(const Cuda& cuda) noexcept;

  Words words_;
  std::list<Recorded> known_;  // the last used first
};

}  // namespace specc
