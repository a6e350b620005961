#include "pool.h"

#include <algorithm>
#include <chrono>
#include <pthread.h>

#include "cpu.h"

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace specc {
namespace {

constexpr auto kSpin = std::chrono::microseconds(60);
constexpr int kPausesPerClock = 64;
constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kMaxClaims = 0xFFFF;  // what 16 bits of `Unclaimed` can count

thread_local bool inside_part = false;

// A forked child inherits the pool but none of its threads.
std::atomic<unsigned> fork_generation{0};

void watch_forks() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1, std::memory_order_relaxed); });
  (void)registered;
}

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Returns whether `ready` came true within the spinning time.
template <class Ready>
bool spin_until(Ready ready) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerClock; ++i) {
      if (ready()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

void pin_to(std::thread& thread, int cpu) {
#if defined(__linux__)
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<size_t>(cpu), &mask);
  pthread_setaffinity_np(thread.native_handle(), sizeof mask, &mask);  // where it fails, the thread roams as before
#endif
}

}  // namespace

Pool::Pool(int32_t threads, bool pin) : used_(kMaxThreads) {
  watch_forks();
  fork_generation_ = fork_generation.load(std::memory_order_relaxed);
  const int32_t count = std::clamp<int32_t>(threads, 1, kMaxThreads);
  const std::vector<int> cores = pin ? core_cpus() : std::vector<int>();
  unclaimed_ = std::vector<Unclaimed>(static_cast<size_t>(count));
  workers_.reserve(static_cast<size_t>(count) - 1);
  for (int32_t thread = 1; thread < count; ++thread) {
    try {
      workers_.emplace_back([this, thread] { work(thread); });
    } catch (const std::system_error&) {
      break;  // the system has no more threads for us: fewer will do
    }
    // More threads than cores would have to share one: then none is bound.
    if (static_cast<size_t>(count) <= cores.size()) pin_to(workers_.back(), cores[static_cast<size_t>(thread)]);
  }
}

Pool::~Pool() {
  if (fork_generation_ != fork_generation.load(std::memory_order_relaxed)) {
    for (auto& worker : workers_) worker.detach();  // they live in the parent process only
    return;
  }
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    stopping_.store(true);
  }
  job_ready_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void Pool::parallel(int32_t parts, Body body, void* arg) {
  const int32_t crew = std::min({parts, threads(), used_.load(std::memory_order_relaxed)});
  const bool forked = fork_generation_ != fork_generation.load(std::memory_order_relaxed);
  if (crew <= 1 || inside_part || forked || busy_.exchange(true, std::memory_order_acquire)) {
    for (int32_t part = 0; part < parts; ++part) body(arg, part);
    return;
  }
  body_ = body;
  arg_ = arg;
  parts_ = parts;
  grain_ = (parts - 1) / kMaxClaims + 1;
  const int64_t claims = (parts - 1) / grain_ + 1;
  unfinished_.store(static_cast<int32_t>(claims), std::memory_order_relaxed);
  const auto job = static_cast<uint32_t>((ticket_.load(std::memory_order_relaxed) >> 32) + 1);
  for (int64_t thread = 0; thread < crew; ++thread) {
    const auto begin = static_cast<uint64_t>(claims * thread / crew), end = static_cast<uint64_t>(claims * (thread + 1) / crew);
    unclaimed_[static_cast<size_t>(thread)].word.store(uint64_t{job} << 32 | end << 16 | begin, std::memory_order_release);
  }
  // Sequentially consistent with sleeping_workers_: either we see the sleeper, or it sees the job before it sleeps.
  ticket_.store(uint64_t{job} << 32 | static_cast<uint32_t>(crew), std::memory_order_seq_cst);
  if (sleeping_workers_.load(std::memory_order_seq_cst) > 0) {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
    }
    job_ready_.notify_all();
  }
  inside_part = true;
  run(0, crew, job);
  inside_part = false;
  await_others();
  busy_.store(false, std::memory_order_release);
}

// Takes one claim from what is left of `owner`'s run. False if that is nothing, or belongs to another job.
bool Pool::claim(int32_t owner, uint32_t job, bool from_front, int32_t* claimed) {
  auto& word = unclaimed_[static_cast<size_t>(owner)].word;
  uint64_t now = word.load(std::memory_order_acquire);
  for (;;) {
    const auto begin = static_cast<int32_t>(now & 0xFFFF), end = static_cast<int32_t>(now >> 16 & 0xFFFF);
    if (now >> 32 != job || begin == end) return false;
    const uint64_t next = from_front ? now + 1 : now - (1 << 16);
    if (word.compare_exchange_weak(now, next, std::memory_order_acq_rel, std::memory_order_acquire)) {
      *claimed = from_front ? begin : end - 1;
      return true;
    }
  }
}

// Everything this thread can get of a job: its own run, then what others have not begun.
void Pool::run(int32_t thread, int32_t crew, uint32_t job) {
  int32_t done = 0, claimed = 0;
  for (int32_t step = 0; step < crew; ++step) {
    const int32_t owner = (thread + step) % crew;
    while (claim(owner, job, step == 0, &claimed)) {
      const int64_t first = int64_t{claimed} * grain_;
      const int64_t last = std::min<int64_t>(first + grain_, parts_);
      for (int64_t part = first; part < last; ++part) body_(arg_, static_cast<int32_t>(part));
      ++done;
    }
  }
  // Without a claim of ours the job may be over, and the counter another one's.
  if (done == 0 || unfinished_.fetch_sub(done, std::memory_order_seq_cst) != done) return;
  if (!caller_sleeps_.load(std::memory_order_seq_cst)) return;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
  }
  all_done_.notify_one();
}

void Pool::await_others() {
  const auto done = [this] { return unfinished_.load(std::memory_order_seq_cst) == 0; };
  if (spin_until(done)) return;
  std::unique_lock<std::mutex> guard(mutex_);
  caller_sleeps_.store(true, std::memory_order_seq_cst);
  all_done_.wait(guard, done);
  caller_sleeps_.store(false, std::memory_order_relaxed);
}

uint64_t Pool::await_job(uint64_t seen) {
  const auto changed = [&] { return ticket_.load(std::memory_order_seq_cst) != seen || stopping_.load(); };
  if (!spin_until(changed)) {
    std::unique_lock<std::mutex> guard(mutex_);
    sleeping_workers_.fetch_add(1, std::memory_order_seq_cst);
    job_ready_.wait(guard, changed);
    sleeping_workers_.fetch_sub(1, std::memory_order_relaxed);
  }
  return ticket_.load(std::memory_order_acquire);
}

void Pool::work(int32_t thread) {
  inside_part = true;  // a kernel that calls parallel() from a part runs it inline
  uint64_t seen = 0;
  for (;;) {
    seen = await_job(seen);
    if (stopping_.load()) return;
    const auto crew = static_cast<int32_t>(seen & 0xFFFFFFFF);
    if (thread < crew) run(thread, crew, static_cast<uint32_t>(seen >> 32));
  }
}

}  // namespace specc
