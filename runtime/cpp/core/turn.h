// A mutex that serves in order of arrival: sessions of one artifact take turns per round, and none is starved.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace specc {

class TurnMutex {
 public:
  void lock() {
    std::unique_lock<std::mutex> guard(mutex_);
    const uint64_t ticket = next_ticket_++;
    turned_.wait(guard, [&] { return serving_ == ticket; });
  }
  void unlock() {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      ++serving_;
    }
    turned_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable turned_;
  uint64_t next_ticket_ = 0;
  uint64_t serving_ = 0;
};

using Turn = std::lock_guard<TurnMutex>;

}  // namespace specc
