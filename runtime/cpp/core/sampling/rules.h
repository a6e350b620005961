// The acceptance rules, over any chance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "chance.h"
#include "law.h"
#include "params.h"
#include "row_logits.h"
#include "sampler.h"

namespace specc {

// Probability that rejection keeps a draft: min(1, p/q). A draft that its law cannot have drawn is not kept.
double ratio(double p, double q);

// Block verification: that at least the drafts before a row are kept, given that no more are. `joint` is P of them, the
// running min(1, P p/q); `remain` is the sum of max(P p - q, 0) over the row.
double block_ratio(double joint, double remain);

class Rules {
 public:
  Rules(int64_t vocab_size, size_t max_rows);

  void set(const SamplingParams& params);
  const SamplingParams& params() const { return params_; }

  // Writes [accepted + 1] tokens and the rows that they were chosen at; returns accepted.
  size_t run(const History& history, const RoundLogits& round, Chance& chance, int64_t* tokens, int32_t* rows);
  int64_t draft(const History& history, const int64_t* drafts, size_t j, const DraftLogits& draft,
                const uint32_t* allowed, Chance& chance);

 private:
  void check(const RoundLogits& round) const;
  Row row_of(const float* logits, bool filtered);
  Row target_row(const RoundLogits& round, size_t row);
  void target_law(const RoundLogits& round, size_t row);
  void draft_law(const RoundLogits& round, size_t j);
  void take_from_target(double scale);
  void take_from_draft(int64_t token);
  void restart(const History& history, const int64_t* drafts, size_t count);
  int64_t own_choice(const RoundLogits& round, size_t row, size_t position, Chance& chance);

  size_t match(const RoundLogits& round, size_t root, Chance& chance, int64_t* tokens, int32_t* rows);
  size_t reject(const RoundLogits& round, size_t root, Chance& chance, int64_t* tokens, int32_t* rows);
  size_t block(const History& history, const RoundLogits& round, Chance& chance, int64_t* tokens, int32_t* rows);

  const size_t vocab_size_, max_rows_;
  SamplingParams params_;
  RowLogits row_logits_;
  Filter filter_;
  Law target_, draft_;
  std::vector<double> draft_mass_;  // of draft_ by id, 0 elsewhere
};

}  // namespace specc
