#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <sched.h>

#include "../../../runtime/cpp/core/cpu.h"
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

// A worker that the system put aside in its first part, as a busy neighbour makes it.
struct Stuck {
  std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> done{0};
  std::atomic<bool> worker_began{false};
  static constexpr int kParts = 8;

  static void body(void* arg, int32_t) {
    auto& stuck = *static_cast<Stuck*>(arg);
    if (std::this_thread::get_id() == stuck.caller) {
      while (!stuck.worker_began) std::this_thread::yield();
    } else {
      stuck.worker_began = true;
      while (stuck.done < kParts - 1) std::this_thread::yield();  // for ever, if nobody does its other parts
    }
    ++stuck.done;
  }
};

void takes_over_from_a_worker_that_does_not_run() {
  Pool pool(2);
  for (int round = 0; round < 20; ++round) {
    Stuck stuck;
    pool.parallel(Stuck::kParts, Stuck::body, &stuck);
    CHECK_EQ(stuck.done.load(), Stuck::kParts);
  }
}

void runs_more_parts_than_it_counts() {
  constexpr int32_t kMany = 200003;
  Pool pool(3);
  Count count{&pool, std::vector<std::atomic<int>>(kMany)};
  const long before = allocations_so_far();
  for (int round = 0; round < 3; ++round) pool.parallel(kMany, hit, &count);
  CHECK_EQ(allocations_so_far(), before);
  int wrong = 0;
  for (const auto& hits : count.hits) wrong += hits.load() != 3;
  CHECK_EQ(wrong, 0);
}

struct Places {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<int> bound_to;  // by threads that may use one CPU alone

  static void body(void* arg, int32_t) {
    auto& places = *static_cast<Places*>(arg);
    cpu_set_t mask;
    sched_getaffinity(0, sizeof mask, &mask);
    {
      const std::lock_guard<std::mutex> guard(places.mutex);
      places.threads.insert(std::this_thread::get_id());
      for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&mask) == 1; ++cpu) {
        if (CPU_ISSET(cpu, &mask)) places.bound_to.insert(cpu);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // lets the others have a part
  }
};

// Each worker on a core of its own and never on the first, or nobody anywhere.
void pins_workers_when_asked() {
  const auto cores = core_cpus();
  CHECK(!cores.empty());
  for (const auto& [threads, pin] : {std::pair<size_t, bool>{cores.size(), true}, {cores.size() + 1, true}, {2, false}}) {
    const bool bound = pin && threads <= cores.size() && threads > 1;
    Places places;
    Pool pool(static_cast<int32_t>(threads), pin);
    for (int round = 0; round < 200 && places.threads.size() < threads; ++round)
      pool.parallel(static_cast<int32_t>(4 * threads), Places::body, &places);
    if (places.threads.size() < threads || cores.size() == 1) continue;  // too busy a machine, or one core: nothing to see
    CHECK_EQ(places.bound_to.size(), bound ? threads - 1 : 0);
    CHECK(places.bound_to.count(cores[0]) == 0);
  }
}

void reads_quotas(const std::string& folder) {
  namespace fs = std::filesystem;
  const auto write = [&](const std::string& name, const char* text) {
    fs::create_directories(fs::path(folder + "/" + name).parent_path());
    std::ofstream(folder + "/" + name) << text << "\n";
  };
  CHECK_EQ(cgroup_cpus(folder, "0::/\n"), 0);
  write("pod/app/cpu.max", "max 100000");
  CHECK_EQ(cgroup_cpus(folder, "0::/pod/app\n"), 0);
  write("pod/cpu.max", "250000 100000");
  CHECK_EQ(cgroup_cpus(folder, "0::/pod/app\n"), 3);  // a level above binds too
  write("pod/app/cpu.max", "50000 100000");
  CHECK_EQ(cgroup_cpus(folder, "0::/pod/app\n"), 1);
  write("cpu/box/cpu.cfs_quota_us", "400000");
  write("cpu/box/cpu.cfs_period_us", "100000");
  CHECK_EQ(cgroup_cpus(folder, "5:memory:/box\n4:cpu,cpuacct:/box\n"), 4);
  write("cpu/box/cpu.cfs_quota_us", "-1");
  CHECK_EQ(cgroup_cpus(folder, "4:cpu,cpuacct:/box\n"), 0);
  CHECK_EQ(cgroup_cpus(folder, "nonsense"), 0);
}

}  // namespace

void pool_test(const std::string& folder) {
  takes_over_from_a_worker_that_does_not_run();
  runs_more_parts_than_it_counts();
  pins_workers_when_asked();
  reads_quotas(folder);
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
