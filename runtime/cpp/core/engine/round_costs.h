// What a round of each draft length costs, as the sessions of an artifact last measured it.
#pragma once

#include <atomic>
#include <cstddef>
#include <vector>

namespace specc {

// Costs are the machine's and the artifact's, not the text's: a new session starts from what the others know, so that
// short requests need not all explore. Any thread may read and write; the last writer wins.
class RoundCosts {
 public:
  explicit RoundCosts(size_t n_lengths = 0) : seconds_(n_lengths) {}

  double seconds(size_t index) const { return seconds_[index].load(std::memory_order_relaxed); }  // 0: not known
  void publish(size_t index, double seconds) { seconds_[index].store(seconds, std::memory_order_relaxed); }

 private:
  std::vector<std::atomic<double>> seconds_;  // by index of the draft length
};

}  // namespace specc
