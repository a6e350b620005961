// CUDA C++ on a CPU: one block after another, its threads as fibers that hand over where they wait for each other.
// What a kernel may use here is what specc's kernels use; anything else does not compile.
#pragma once
#include <immintrin.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#define __global__
#define __launch_bounds__(count)
#define uint unsigned int
#define CUDART_INF_F std::numeric_limits<float>::infinity()
#define CUDART_INF std::numeric_limits<double>::infinity()

// Halves are numbers of 32 bits but where they lie: what two of them make is rounded when it is stored.
struct half {
  uint16_t bits;
  half() = default;
  explicit half(float x) : bits(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)) {}
  operator float() const { return _cvtsh_ss(bits); }
};
struct nv_bfloat16 {
  uint16_t bits;
  nv_bfloat16() = default;
  explicit nv_bfloat16(float x) {
    uint32_t word;
    std::memcpy(&word, &x, sizeof word);
    bits = x != x ? 0x7FFF : static_cast<uint16_t>((word + 0x7FFF + (word >> 16 & 1)) >> 16);
  }
  operator float() const {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float x;
    std::memcpy(&x, &word, sizeof x);
    return x;
  }
};

struct Three {
  unsigned x, y, z;
};
static Three blockIdx, threadIdx;

static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
template <class T>
static T max(T a, T b) { return std::isnan(static_cast<double>(a)) ? b : a < b ? b : a; }
template <class T>
static T min(T a, T b) { return std::isnan(static_cast<double>(a)) ? b : b < a ? b : a; }

namespace simt {

enum class State { kReady, kAtWarp, kAtBlock, kDone };

struct Fiber {
  ucontext_t first;
  jmp_buf here;
  bool begun = false;
  State state = State::kReady;
  std::unique_ptr<char[]> stack{new char[kStack]};
  static constexpr size_t kStack = 1 << 15;
};

static std::vector<Fiber> fibers;
static unsigned count, current;
static jmp_buf scheduler;
static std::function<void()> body;
static uint64_t slots[1024];

static void enter() {
  body();
  fibers[current].state = State::kDone;
  _longjmp(scheduler, 1);
}

static void wait(State where) {
  fibers[current].state = where;
  if (_setjmp(fibers[current].here) == 0) _longjmp(scheduler, 1);
}

static void resume(unsigned i) {
  current = i;
  threadIdx = {i, 0, 0};
  if (_setjmp(scheduler) != 0) return;
  Fiber& fiber = fibers[i];
  if (fiber.begun) _longjmp(fiber.here, 1);
  fiber.begun = true;
  getcontext(&fiber.first);
  fiber.first.uc_stack = {fiber.stack.get(), 0, Fiber::kStack};
  fiber.first.uc_link = nullptr;
  makecontext(&fiber.first, enter, 0);
  setcontext(&fiber.first);
}

// Threads [begin, end) that all wait at `where`, or are done, go on; whether there were any.
static bool release(unsigned begin, unsigned end, State where) {
  bool any = false;
  for (unsigned i = begin; i < end; i++) {
    if (fibers[i].state == State::kReady || (fibers[i].state != where && fibers[i].state != State::kDone)) return false;
    any = any || fibers[i].state == where;
  }
  for (unsigned i = begin; any && i < end; i++) {
    if (fibers[i].state == where) fibers[i].state = State::kReady;
  }
  return any;
}

static void block() {
  for (unsigned i = 0; i < count; i++) fibers[i].begun = false, fibers[i].state = State::kReady;
  for (;;) {
    for (unsigned i = 0; i < count; i++) {
      if (fibers[i].state == State::kReady) resume(i);
    }
    bool any = false;
    for (unsigned w = 0; w < count; w += 32) any |= release(w, std::min(w + 32, count), State::kAtWarp);
    if (any || release(0, count, State::kAtBlock)) continue;
    for (unsigned i = 0; i < count; i++) {
      if (fibers[i].state != State::kDone) std::abort();  // threads wait for some that never come
    }
    return;
  }
}

static void run(const unsigned* grid, unsigned threads, std::function<void()> kernel) {
  count = threads;
  if (fibers.size() < threads) fibers = std::vector<Fiber>(threads);
  body = std::move(kernel);
  for (unsigned z = 0; z < grid[2]; z++) {
    for (unsigned y = 0; y < grid[1]; y++) {
      for (unsigned x = 0; x < grid[0]; x++) {
        blockIdx = {x, y, z};
        block();
      }
    }
  }
}

template <class T>
static T from_lane(T value, unsigned lane) {
  const unsigned me = current, source = me / 32 * 32 + lane;
  std::memcpy(&slots[me], &value, sizeof value);
  wait(State::kAtWarp);
  T found = value;
  if (lane < 32 && source < count) std::memcpy(&found, &slots[source], sizeof found);
  wait(State::kAtWarp);
  return found;
}

}  // namespace simt

static inline void __syncthreads() { simt::wait(simt::State::kAtBlock); }
static inline unsigned __activemask() { return 0xFFFFFFFFu; }
template <class T>
static T __shfl_down_sync(unsigned, T value, int apart, int) {
  return simt::from_lane(value, simt::current % 32 + static_cast<unsigned>(apart));
}
template <class T>
static T __shfl_sync(unsigned, T value, int lane, int) {
  return simt::from_lane(value, static_cast<unsigned>(lane));
}
