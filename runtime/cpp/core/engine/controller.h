// How many tokens to draft next. Decides from history alone (times and acceptance of past rounds), never from the block
// at hand, so the text does not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arm_cost.h"
#include "round_costs.h"

namespace specc {

// Maximises expected tokens per second, (1 + sum over j of prod over i<=j of acceptance_i) / seconds(K), over the
// artifact's draft lengths. 0 is always among them: speculation that loses is switched off, and retried now and then.
//
// It begins with a few rounds of 0 and of the shortest draft, unless other sessions know what they cost. A longer one
// is tried only while it could still be the best if it cost no more than the next shorter one; what cannot pay is not
// paid for. Later, trying what seems to lose may cost a fixed small share of the time. Catching a drafter up costs more
// the longer it was left out, and is charged to that share once it was done: where it costs a larger share s of the
// time it spans, each probe waits about s / kProbeShare times as long as the one before.
//
// An account is kept of what drafts saved and cost against plain decoding. A draft is as long as the account could bear
// if none of it were accepted, so a text where drafts only lose takes a fixed small share longer than without them, not
// more, however short it is.
class LengthController {
 public:
  // lengths: ascending, begins with 0. shared: begin with these costs and publish what is learnt; may be null.
  explicit LengthController(std::vector<int64_t> lengths, RoundCosts* shared = nullptr);

  size_t choose();  // index of the length for the next round
  // What came of a round. Its length may differ from the choice (the drafter found nothing, the context ends).
  // catch_up_seconds: spent once, before the round, because rounds without drafts had left the drafter behind.
  void observe(size_t index, size_t accepted, double seconds, double catch_up_seconds = 0);

  // The same of a round whose cost is not this controller's to know: a batch shares it.
  void observe_acceptance(size_t index, size_t accepted) { learn_acceptance(static_cast<size_t>(lengths_[index]), accepted); }

  double expected_tokens(size_t index) const;
  double rate(size_t index) const;  // expected tokens per second
  size_t current() const { return current_; }
  uint64_t rounds() const { return rounds_; }  // observed

 private:
  double seconds(size_t index) const;
  double cost_of_probe(size_t index) const;
  size_t affordable(size_t index) const;
  void account(size_t index, size_t accepted, double catch_up_seconds);
  size_t next_to_probe() const;
  void learn_acceptance(size_t length, size_t accepted);
  void learn_cost(size_t index, double seconds);
  void settle(double gain_to_lengthen, double gain_to_shorten);
  void schedule_probe(bool promising);

  std::vector<int64_t> lengths_;
  std::vector<ArmCost> arms_;
  RoundCosts* shared_;
  std::vector<double> acceptance_;  // of position i, given that all before it were accepted
  std::vector<uint64_t> acceptance_seen_;
  size_t current_ = 0;
  uint64_t rounds_ = 0;
  uint64_t rounds_in_arm_ = 0;
  double saved_;  // against plain decoding, and what may still be lost; in rounds without drafts
  uint64_t probe_interval_, rounds_to_probe_;
  double probe_allowance_ = 0;  // in rounds of the current length; below 0 after a probe that cost more
  size_t next_probe_ = 0;
  size_t probing_;  // the arm being probed, or kNotProbing
};

// How many of the target's layers to draft with: fewer when nearly everything is accepted, more when too little is.
class DepthController {
 public:
  explicit DepthController(const std::vector<int64_t>& depths);  // ascending; may be empty

  size_t index() const { return index_; }
  void observe(size_t drafted, size_t accepted);

 private:
  size_t first_ = 0, count_ = 0, index_ = 0;
  double ewma_;
  uint64_t dwell_ = 0;
};

}  // namespace specc
