#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "../../../runtime/cpp/core/pool.h"
#include "../../../runtime/cpp/core/turn.h"
#include "check.h"
#include "tests.h"

using namespace specc;

namespace {

struct Count {
  Pool* pool;
  std::vector<std::atomic<int>> hits;
  std::atomic<int> inner{0};
};

void hit(void* arg, int32_t part) { ++static_cast<Count*>(arg)->hits[static_cast<size_t>(part)]; }
void nested(void* arg, int32_t) {
  auto& count = *static_cast<Count*>(arg);
  count.pool->parallel(3, [](void* inner, int32_t) { ++*static_cast<std::atomic<int>*>(inner); }, &count.inner);
}

}  // namespace

void pool_test() {
  for (const int32_t threads : {1, 2, 3}) {
    Pool pool(threads);
    CHECK_EQ(pool.threads(), threads);
    for (int round = 0; round < 200; ++round) {
      const int32_t parts = round % 7;
      Count count{&pool, std::vector<std::atomic<int>>(7)};
      pool.parallel(parts, hit, &count);
      for (int32_t part = 0; part < 7; ++part)
        CHECK_EQ(count.hits[static_cast<size_t>(part)].load(), part < parts ? 1 : 0);
      if (round % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // let the workers fall asleep
    }
    Count count{&pool, std::vector<std::atomic<int>>(1)};
    pool.parallel(4, nested, &count);
    CHECK_EQ(count.inner.load(), 12);
    std::vector<std::thread> callers;  // without taking turns: still right
    Count shared{&pool, std::vector<std::atomic<int>>(5)};
    for (int i = 0; i < 3; ++i) {
      callers.emplace_back([&] {
        for (int round = 0; round < 50; ++round) pool.parallel(5, hit, &shared);
      });
    }
    for (auto& caller : callers) caller.join();
    for (const auto& hits : shared.hits) CHECK_EQ(hits.load(), 150);
  }
  TurnMutex turn;
  int guarded = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        const Turn held(turn);
        ++guarded;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK_EQ(guarded, 300);
}
