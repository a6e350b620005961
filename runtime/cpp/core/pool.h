// Threads that run the parts of one kernel. A kernel takes tens of microseconds and the next one follows at once, so
// workers spin for a moment before they sleep; they sleep soon, since a spinning thread on a shared core only delays
// the others.
//
// On a busy machine a worker may get no core for milliseconds, a hundred times what the kernel takes. So nobody waits
// for a worker that has not begun: parts are claimed one by one, and who has none left takes those of others. Only a
// part that was begun must be waited for, which is why kernels cut their work into a few more parts than threads.
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

  // The caller of parallel() counts as one of `threads`. `pin`: each worker stays on one core of those the process may
  // use; the first is left to the caller, whose thread is not ours to bind.
  explicit Pool(int32_t threads, bool pin = false);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int32_t threads() const { return static_cast<int32_t>(workers_.size()) + 1; }
  // From the next kernel on no more than so many of them work; any thread may say so.
  void use(int32_t threads) { used_.store(threads, std::memory_order_relaxed); }
  // How often several threads were set to work, and met again.
  uint32_t jobs() const { return static_cast<uint32_t>(ticket_.load(std::memory_order_relaxed) >> 32); }

  // Runs body(arg, part) for part in [0, parts) and returns when all are done. Each thread has a run of neighbouring
  // parts and begins at its front, which reads memory in order; what it leaves over is taken from the back. Allocates
  // nothing. Called from inside a part, or while another thread is using the pool, it runs the parts one by one on the
  // calling thread.
  void parallel(int32_t parts, Body body, void* arg);

 private:
  // One word tells a worker that there is a job and whether it takes part: the job's number in the high half, the
  // number of threads in the low half. A worker that does not reads nothing else, so the job may change under it.
  void work(int32_t thread);
  uint64_t await_job(uint64_t seen);
  void await_others();
  void run(int32_t thread, int32_t crew, uint32_t job);
  bool claim(int32_t owner, uint32_t job, bool from_front, int32_t* run);

  // Runs of parts that nobody has claimed yet: job << 32 | end << 16 | begin. The job's number keeps a worker that comes
  // late from claiming in a job it has not seen. A cache line each, as all write.
  struct alignas(64) Unclaimed {
    std::atomic<uint64_t> word{0};
  };
  std::vector<Unclaimed> unclaimed_;

  // What workers watch, and with it all that they need to know of a job: in one cache line, which only the caller writes.
  // The job is written before `unclaimed_`, read after a claim, and left alone until what was claimed is finished.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  Body body_ = nullptr;
  void* arg_ = nullptr;
  int32_t parts_ = 0;
  int32_t grain_ = 1;  // parts that are claimed as one: 1 but for very many
  std::atomic<bool> stopping_{false};

  std::atomic<int32_t> used_;  // what the caller alone reads

  alignas(64) std::atomic<int32_t> unfinished_{0};  // what the caller watches
  alignas(64) std::atomic<bool> busy_{false};

  std::mutex mutex_;
  std::condition_variable job_ready_, all_done_;
  std::atomic<int32_t> sleeping_workers_{0};
  std::atomic<bool> caller_sleeps_{false};
  unsigned fork_generation_;
  std::vector<std::thread> workers_;
};

}  // namespace specc
