#include "pool.h"

#include <algorithm>
#include <chrono>
#include <pthread.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace specc {
namespace {

constexpr auto kSpin = std::chrono::microseconds(60);
constexpr int kPausesPerClock = 64;
constexpr int32_t kMaxThreads = 1024;

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

}  // namespace

Pool::Pool(int32_t threads) {
  watch_forks();
  fork_generation_ = fork_generation.load(std::memory_order_relaxed);
  const int32_t count = std::clamp<int32_t>(threads, 1, kMaxThreads);
  offers_ = std::vector<Offer>(static_cast<size_t>(count));
  workers_.reserve(static_cast<size_t>(count) - 1);
  for (int32_t thread = 1; thread < count; ++thread) {
    try {
      workers_.emplace_back([this, thread] { work(thread); });
    } catch (const std::system_error&) {
      break;  // the system has no more threads for us: fewer will do
    }
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
  const int32_t crew = std::min(parts, threads());
  const bool forked = fork_generation_ != fork_generation.load(std::memory_order_relaxed);
  if (crew <= 1 || inside_part || forked || busy_.exchange(true, std::memory_order_acquire)) {
    for (int32_t part = 0; part < parts; ++part) body(arg, part);
    return;
  }
  body_ = body;
  arg_ = arg;
  parts_ = parts;
  unfinished_.store(crew - 1, std::memory_order_relaxed);
  const uint64_t epoch = (ticket_.load(std::memory_order_relaxed) & ~kCrewMask) + kCrewMask + 1;
  const uint64_t ticket = epoch | static_cast<uint64_t>(crew);
  for (int32_t thread = 1; thread < crew; ++thread) {
    offers_[static_cast<size_t>(thread)].ticket.store(ticket, std::memory_order_release);
  }
  // Sequentially consistent with sleeping_workers_: either we see the sleeper, or it sees the job before it sleeps.
  ticket_.store(ticket, std::memory_order_seq_cst);
  if (sleeping_workers_.load(std::memory_order_seq_cst) > 0) {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
    }
    job_ready_.notify_all();
  }
  inside_part = true;
  run_share(0);
  for (int32_t thread = crew - 1; thread > 0; --thread) {
    if (!claim(thread, ticket)) continue;
    run_share(thread);
    unfinished_.fetch_sub(1, std::memory_order_seq_cst);
  }
  inside_part = false;
  await_crew();
  busy_.store(false, std::memory_order_release);
}

// Only for the ticket it was offered under: a worker that comes late finds its share gone, or another job's.
bool Pool::claim(int32_t thread, uint64_t ticket) {
  auto& offer = offers_[static_cast<size_t>(thread)].ticket;
  return offer.load(std::memory_order_relaxed) == ticket &&
         offer.compare_exchange_strong(ticket, 0, std::memory_order_acq_rel, std::memory_order_relaxed);
}

void Pool::run_share(int32_t thread) {
  const int32_t stride = threads();
  for (int32_t part = thread; part < parts_; part += stride) body_(arg_, part);
}

void Pool::await_crew() {
  const auto done = [this] { return unfinished_.load(std::memory_order_seq_cst) == 0; };
  if (spin_until(done)) return;
  std::unique_lock<std::mutex> guard(mutex_);
  caller_sleeps_.store(true, std::memory_order_seq_cst);
  crew_done_.wait(guard, done);
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
    if (static_cast<uint64_t>(thread) >= (seen & kCrewMask) || !claim(thread, seen)) continue;
    run_share(thread);
    if (unfinished_.fetch_sub(1, std::memory_order_seq_cst) == 1 && caller_sleeps_.load(std::memory_order_seq_cst)) {
      {
        const std::lock_guard<std::mutex> guard(mutex_);
      }
      crew_done_.notify_one();
    }
  }
}

}  // namespace specc
