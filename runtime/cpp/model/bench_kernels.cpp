// Times specc::linear alone: how much longer M rows take than one, and how near memory and arithmetic limits that is.
//
//   g++ <flags of README.md> bench_kernels.cpp tensor.cpp pool.cpp error.cpp weights.cpp weights_f32.cpp linear.cpp encodings.cpp
//       -lpthread -o bench_kernels
//   ./bench_kernels [threads [repetitions]]
//
// Each shape is a chain of enough matrices (96 MB) that none is in cache when its turn comes again.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "parallel.h"
#include "weights.h"

specc_host specc::host = {nullptr, nullptr, 1};

namespace {

// The bench's stand-in for the engine's pool: threads that spin on a generation number.
struct SpinningPool {
  std::atomic<int64_t> generation{0};
  std::atomic<int32_t> pending{0};
  std::atomic<bool> stop{false};
  void (*body)(void*, int32_t) = nullptr;
  void* arg = nullptr;
  int32_t parts = 0;
  std::vector<std::thread> threads;

  explicit SpinningPool(int count) {
    for (int i = 1; i < count; i++) threads.emplace_back([this, i] { work(i); });
  }
  ~SpinningPool() {
    stop = true;
    for (std::thread& thread : threads) thread.join();
  }
  void work(int32_t me) {
    for (int64_t seen = 0; !stop;) {
      const int64_t now = generation.load(std::memory_order_acquire);
      if (now == seen) continue;
      seen = now;
      if (me < parts) body(arg, me);
      pending.fetch_sub(1, std::memory_order_release);
    }
  }
  static void run(void* self, int32_t parts, void (*body)(void*, int32_t), void* arg) {
    SpinningPool& pool = *static_cast<SpinningPool*>(self);
    pool.body = body;
    pool.arg = arg;
    pool.parts = parts;
    pool.pending.store(static_cast<int32_t>(pool.threads.size()), std::memory_order_relaxed);
    pool.generation.fetch_add(1, std::memory_order_release);
    body(arg, 0);
    while (pool.pending.load(std::memory_order_acquire) != 0) {
    }
  }
};

using Clock = std::chrono::steady_clock;

struct Chain {
  int64_t depth, columns;
  std::vector<specc::Tensor*> weights;
};

Chain make_chain(int64_t depth, int64_t columns) {
  Chain chain{depth, columns, {}};
  const int64_t shape[] = {columns / specc::kTileColumns, depth, specc::kTileColumns};
  const int64_t bytes = depth * columns * 4;
  for (int64_t total = 0; total < 96 << 20; total += bytes) {
    specc::Tensor* w = specc::new_empty(SPECC_F32, 3, shape);
    for (int64_t i = 0; i < depth * columns; i++) w->data<float>()[i] = static_cast<float>(i % 97) * 0.01f - 0.5f;
    chain.weights.push_back(w);
  }
  return chain;
}

double seconds_for(const Chain& chain, int64_t rows) {
  const int64_t shape[] = {rows, chain.depth};
  specc::Tensor* x = specc::new_empty(SPECC_F32, 2, shape);
  for (int64_t i = 0; i < x->numel(); i++) x->data<float>()[i] = static_cast<float>(i % 31) * 0.03f - 0.4f;
  const auto start = Clock::now();
  for (specc::Tensor* w : chain.weights) specc::release(specc::linear(*x, *w, nullptr, chain.columns, specc::find_encoding("f32")));
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  specc::release(x);
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 7;
  SpinningPool pool(threads);
  specc::host = {SpinningPool::run, &pool, threads};
  const int64_t shapes[][2] = {{576, 576}, {576, 3072}, {1536, 576}, {576, 49152}};
  const int64_t row_counts[] = {1, 2, 4, 6, 8, 12, 16, 32, 64, 128};
  std::printf("%d threads; best of %d\n%-12s %4s %9s %9s %7s %9s\n", threads, repetitions, "KxN", "M", "us", "t/t(1)",
              "GB/s", "GFLOP/s");
  for (const auto& shape : shapes) {
    const Chain chain = make_chain(shape[0], shape[1]);
    const double matrices = static_cast<double>(chain.weights.size());
    const double elements = static_cast<double>(shape[0] * shape[1]) * matrices;
    constexpr int kCounts = sizeof row_counts / sizeof row_counts[0];
    double best[kCounts];
    std::fill(best, best + kCounts, 1e9);
    // Interleaved, so that a slow moment of the machine hits all row counts alike.
    for (int repetition = 0; repetition < repetitions; repetition++) {
      for (int i = 0; i < kCounts; i++) best[i] = std::min(best[i], seconds_for(chain, row_counts[i]));
    }
    for (int i = 0; i < kCounts; i++) {
      std::printf("%5ldx%-6ld %4ld %9.1f %9.2f %7.1f %9.1f\n", (long)shape[0], (long)shape[1], (long)row_counts[i],
                  best[i] / matrices * 1e6, best[i] / best[0], elements * 4 / best[i] * 1e-9,
                  2 * elements * static_cast<double>(row_counts[i]) / best[i] * 1e-9);
    }
    for (specc::Tensor* w : chain.weights) specc::release(w);
  }
}
