// The benches' stand-in for the engine's pool: threads that spin on a generation number, each with a run of the parts.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace specc {

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
      share(me);
      pending.fetch_sub(1, std::memory_order_release);
    }
  }
  void share(int64_t me) {
    const int64_t count = static_cast<int64_t>(threads.size()) + 1;
    for (int64_t part = parts * me / count; part < parts * (me + 1) / count; part++) body(arg, static_cast<int32_t>(part));
  }
  static void run(void* self, int32_t parts, void (*body)(void*, int32_t), void* arg) {
    SpinningPool& pool = *static_cast<SpinningPool*>(self);
    pool.body = body;
    pool.arg = arg;
    pool.parts = parts;
    pool.pending.store(static_cast<int32_t>(pool.threads.size()), std::memory_order_relaxed);
    pool.generation.fetch_add(1, std::memory_order_release);
    pool.share(0);
    while (pool.pending.load(std::memory_order_acquire) != 0) {
    }
  }
};

}  // namespace specc
