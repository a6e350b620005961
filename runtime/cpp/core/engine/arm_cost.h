// Seconds that a round of one kind costs, as measured.
#pragma once

#include <algorithm>
#include <cstdint>

namespace specc {

struct ArmCost {
  static constexpr uint64_t kFewRounds = 4;  // the cost is the least of so many: a round is often late, never early
  static constexpr double kStep = 0.1;
  static constexpr double kOutlier = 1.5;  // a slower round than this times the usual was interrupted: it counts as much

  uint64_t rounds = 0;
  double seconds = 0;

  void observe(double measured) {
    ++rounds;
    if (rounds == 1) {
      seconds = measured;  // high: the first round of a function touches its memory for the first time
    } else if (rounds <= kFewRounds) {
      seconds = std::min(seconds, measured);
    } else {
      seconds += kStep * (std::min(measured, kOutlier * seconds) - seconds);
    }
  }
};

}  // namespace specc
