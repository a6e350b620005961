// Threads that run the parts of one kernel. A kernel takes tens of microseconds and the next one follows at once, so
// workers spin for a moment before they sleep; they sleep soon, since a spinning thread on a shared core only delays
// the others.
//
// On a busy machine a worker may get no core for milliseconds, a hundred times what the kernel takes. So nobody waits
// for a worker that has not begun: whoever claims a share first runs it, and the caller claims what is left over.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace specc {

class Pool {
 public:
  using Body = void (*)(void* arg, int32_t part);

  explicit Pool(int32_t threads);  // the caller of parallel() counts as one
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int32_t threads() const { return static_cast<int32_t>(workers_.size()) + 1; }

  // Runs body(arg, part) for part in [0, parts) and returns when all are done. Part p belongs to thread p % threads(),
  // if that comes in time, which keeps a weight's rows in one core's cache. Allocates nothing. Called from inside a
  // part, or while another thread is using the pool, it runs the parts one by one on the calling thread.
  void parallel(int32_t parts, Body body, void* arg);

 private:
  // One word tells a worker that there is a job and whether it has a part in it: the epoch in the high bits, the number
  // of threads taking part in the low bits. A worker without a part reads nothing else, so the job may change under it.
  static constexpr uint64_t kCrewMask = 0xFFFF;

  void work(int32_t thread);
  uint64_t await_job(uint64_t seen);
  bool claim(int32_t thread, uint64_t ticket);
  void await_crew();
  void run_share(int32_t thread);

  std::atomic<uint64_t> ticket_{0};
  std::atomic<int32_t> unfinished_{0};
  std::atomic<bool> busy_{false};
  std::atomic<bool> stopping_{false};

  // The ticket of the share that waits for this thread; 0 once it is claimed. A cache line each, as all write.
  struct alignas(64) Offer {
    std::atomic<uint64_t> ticket{0};
  };
  std::vector<Offer> offers_;

  // The job. Written before the offers, read after a claim.
  Body body_ = nullptr;
  void* arg_ = nullptr;
  int32_t parts_ = 0;

  std::mutex mutex_;
  std::condition_variable job_ready_, crew_done_;
  std::atomic<int32_t> sleeping_workers_{0};
  std::atomic<bool> caller_sleeps_{false};
  unsigned fork_generation_;
  std::vector<std::thread> workers_;
};

}  // namespace specc
