// Whether drafts that were found in the text beat those of the drafter in the graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arm_cost.h"

namespace specc {

// An artifact may bring a drafter on the host beside the one in its graph: where text is copied, what it finds costs
// nothing and is right by the dozen; elsewhere it finds nothing, or what is not to be trusted. A longer find has a
// longer match behind it, so tokens and costs are learnt for each length by itself. Like LengthController it decides
// from past rounds alone.
class FoundDrafts {
 public:
  explicit FoundDrafts(size_t n_lengths);  // the first is no draft

  // Index of the length to verify, at most `longest`; 0 leaves the round to the graph, which gives `rate` tokens per
  // second.
  size_t choose(size_t longest, double rate);
  void observe(size_t index, size_t accepted, double seconds);

 private:
  struct Arm {
    ArmCost cost;
    double tokens = 0;  // of a round
    uint64_t interval, wait;  // finds of this length that are passed over before one is tried again
  };

  std::vector<Arm> arms_;
};

}  // namespace specc
