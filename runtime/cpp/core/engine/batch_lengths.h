// How many tokens each text of a batch drafts next: together, as their rows share a pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arm_cost.h"
#include "controller.h"
#include "pass_cost.h"

namespace specc {

// Of one text: what its drafts have saved, and may still lose, in tokens that the batch makes in that time; and how many
// rounds until drafts longer than those that seem to pay are tried.
struct DraftAccount {
  double saved = 0.5;
  uint64_t interval = 0, wait = 0;
  bool trying = false;
};

// Maximises the expected tokens per second of the whole batch, its "goodput" (SmartSpec): beginning with no drafts, the
// text whose next longer draft gives the most tokens for a second gets it, as long as that is more than the batch gives
// without it. So the more texts fill a pass, the fewer drafts pay, down to none. What a text's drafts are worth, its own
// controller says by their acceptance; what rows cost is measured. Like that controller it decides from past rounds
// alone, and a draft is as long as the text's account could bear if none of it were kept: where drafts only lose, a text
// costs a small share more than without them, not more, however short it is.
class BatchLengths {
 public:
  // lengths: ascending, begins with 0.
  explicit BatchLengths(const std::vector<int64_t>& lengths) : lengths_(lengths), drafting_(lengths.size()) {}

  struct Step {
    double tokens_per_second = 0;
    size_t index = 0;  // 0: none
  };
  struct Text {
    const LengthController* worth;
    DraftAccount* account;
    size_t most;       // index of the longest length that it may have
    bool adapts;       // false: it has that
    size_t index = 0;  // what it gets
    Step next;         // to a longer one
  };
  void choose(std::vector<Text>& texts);

  // Expected tokens per second of a text in a batch of so many, for the time that is its share.
  double rate(const Text& text, size_t texts) const;

  // What came of it: of a pass; of a text's drafting; and of a text's drafts.
  void observe_pass(size_t rows, double seconds);
  void observe_drafting(size_t index, double seconds) { drafting_[index].observe(seconds); }
  void observe_drafts(DraftAccount& account, size_t index, size_t accepted) const;

 private:
  double cost(size_t index) const;  // beside the pass that a text has in any case
  double price(size_t index) const { return cost(index) / token_s_; }  // in tokens of the batch
  Step best_step(const Text& text) const;
  void try_longer(Text& text) const;

  const std::vector<int64_t>& lengths_;
  PassCost pass_;
  uint64_t passes_ = 0;
  double token_s_ = 1;  // seconds of one token of the batch at hand without drafts
  std::vector<ArmCost> drafting_;  // by length
};

}  // namespace specc
