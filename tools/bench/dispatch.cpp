// What splitting a kernel over the engine's pool costs: how much longer it takes than its share of the work. Prints JSON.
//
//   g++ -std=c++20 -O2 -I<runtime> dispatch.cpp <runtime>/cpp/core/pool.cpp <runtime>/cpp/core/cpu.cpp -pthread
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cpp/core/cpu.h"
#include "cpp/core/pool.h"

using Clock = std::chrono::steady_clock;

namespace {

constexpr std::chrono::nanoseconds kWork(2000);  // a thread's share, about the smallest that kernels split

void busy(std::chrono::nanoseconds time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) {
  }
}

// Of many regions, each `gap` after the one before.
struct Cost {
  double median_ns;
  double quiet_ns;  // the tenth percentile, which a busy neighbour does not reach
};

Cost overhead(specc::Pool& pool, int32_t slices, std::chrono::nanoseconds gap) {
  std::chrono::nanoseconds part = kWork / slices;
  std::vector<double> times;
  for (int i = 0; i < 1000; ++i) {
    busy(gap);
    const auto begin = Clock::now();
    pool.parallel(pool.threads() * slices, [](void* arg, int32_t) { busy(*static_cast<std::chrono::nanoseconds*>(arg)); },
                  &part);
    times.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin - kWork).count());
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() / 10]};
}

}  // namespace

int main(int argc, char** argv) {
  specc::Pool pool(argc > 1 ? std::atoi(argv[1]) : specc::usable_cores());
  const Cost whole = overhead(pool, 1, std::chrono::microseconds(5));
  const Cost sliced = overhead(pool, 4, std::chrono::microseconds(5));
  const Cost asleep = overhead(pool, 1, std::chrono::microseconds(300));
  std::printf("{\"threads\": %d, \"one_part_ns\": %.0f, \"one_part_quiet_ns\": %.0f, \"four_parts_ns\": %.0f, "
              "\"four_parts_quiet_ns\": %.0f, \"after_sleep_ns\": %.0f}\n",
              pool.threads(), whole.median_ns, whole.quiet_ns, sliced.median_ns, sliced.quiet_ns, asleep.median_ns);
}
