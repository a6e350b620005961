// Which plan runs a round of each draft length (and depth), checked once so that a round need not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../manifest.h"
#include "../plan.h"

namespace specc {

struct Round {
  const Plan* plan = nullptr;
  size_t draft_length = 0;
  size_t nodes = 0;  // tokens verified after the root: more than draft_length where drafts are a tree
  size_t tokens_output = 0, accepted_output = 0;
  bool reads_taps = false;
  bool extends = false;  // over the committed tokens that the drafter's own state lacks
  // The round in pieces.
  const Plan* propose = nullptr;  // null: drafts come from the host, or there are none
  const Plan* verify = nullptr;   // null: the artifact has none
  const Plan* commit = nullptr;   // moves the rows of an accepted path; null: drafts are no tree, or the graph's
  size_t drafts_output = 0, logits_output = 0;
  std::vector<size_t> draft_logits_outputs;  // of propose, one for each draft; none: it does not tell
  size_t draft_columns = 0;
  std::vector<size_t> confidence_outputs;  // of propose: whether each draft will be kept; none: it does not foretell
  bool given = false;  // its drafts come from the host, though the graph has a drafter
};

class RoundTable {
 public:
  RoundTable() = default;
  // Keeps pointers into `plans`. Throws Error(Plan) if a function is missing or has other inputs and outputs than
  // agreed.
  RoundTable(const Manifest& manifest, const std::vector<Plan>& plans);

  const Plan& prefill() const { return *prefill_; }
  const Plan* extend() const { return extend_; }  // null: prefill fills all state
  // length_index: into the manifest's num_speculative_tokens; depth_index: into drafter.depths (ignored without
  // depths).
  const Round& round(size_t length_index, size_t depth_index) const;
  // The index of the longest draft, at most that of `length_index`, whose rounds verify at most `room` tokens after the
  // root. Rounds of 0 verify none.
  size_t within(size_t length_index, size_t room) const;
  // The same in pieces, with drafts that the host found.
  const Round& given(size_t length_index) const { return given_[length_index]; }
  // Verifies what several texts drafted, one text's rows after the other's; null: the artifact cannot. Its logits.
  const Plan* score() const { return score_; }
  size_t score_logits() const { return score_logits_; }
  const std::vector<std::vector<Round>>& rounds() const { return rounds_; }  // [length][depth]

 private:
  const Plan* prefill_ = nullptr;
  const Plan* extend_ = nullptr;
  const Plan* score_ = nullptr;
  size_t score_logits_ = 0;
  std::vector<Round> given_;  // by length
  std::vector<std::vector<Round>> rounds_;  // [length][depth], one depth where depth does not matter
};

}  // namespace specc
