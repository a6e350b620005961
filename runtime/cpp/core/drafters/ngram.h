// Prompt lookup: find where the last n tokens occurred before, propose what followed.
#pragma once

#include <vector>

#include "host_drafter.h"

namespace specc {

// The longest n in [min, max] that occurred before wins; of its occurrences the most recent. What followed is copied;
// where the copy reaches the end of the text it goes on with its own beginning, so a loop of any period is continued in
// full.
class NgramDrafter : public HostDrafter {
 public:
  NgramDrafter(size_t min, size_t max) : min_(min), tables_(max - min + 1) {}

  void reserve(size_t tokens) override;
  void truncate(size_t count) override;
  size_t propose(const int64_t* tokens, size_t count, size_t k, int64_t* draft) override;

 private:
  // Open addressing from an n-gram to the position after its latest occurrence. Keys are not stored: an entry's n-gram
  // is read from the text itself.
  struct Table {
    std::vector<uint32_t> after;  // 0: free (nothing ends before position 1)
    size_t used = 0;
  };

  void index(const int64_t* tokens, size_t count);
  void grow(Table& table, const int64_t* tokens, size_t n, size_t capacity);
  static uint32_t& slot(Table& table, const int64_t* tokens, size_t n, const int64_t* ngram);

  size_t min_;
  std::vector<Table> tables_;  // tables_[i] for n = min_ + i
  size_t indexed_ = 0;         // n-grams that end before this position are in the tables
};

}  // namespace specc
