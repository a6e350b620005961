// What a drafter in the graph told with its drafts. Copied, since the next piece of the round takes the place of its results.
#pragma once

#include <cstddef>
#include <vector>

#include "../frame.h"
#include "../sampling/sampler.h"
#include "round_table.h"

namespace specc {

class DraftScores {
 public:
  // Makes room for rounds like this one, so that a round need not.
  void reserve(const Round& round);
  // Reads the results of round.propose. Throws Error(Compute).
  void take(const Frame& frame, const Round& round);
  // Row j is the law that draft j was drawn from.
  DraftLogits logits() const;
  // Leading drafts of round.propose whose confidence is no less than `least`; all, if it foretells nothing. Each was told
  // from the drafts before it alone, so that a cut changes no law. Throws Error(Compute).
  static size_t trusted(const Frame& frame, const Round& round, double least);

 private:
  std::vector<float> logits_;
  size_t columns_ = 0;
};

}  // namespace specc
