// Prompt lookup: find where the last n tokens occurred before, propose what followed.
#pragma once

#include <vector>

#include "continuations.h"
#include "host_drafter.h"

namespace specc {

// The longest n in [min, max] that occurred before wins; of its occurrences the most recent. What followed is copied;
// where the copy reaches the end of the text it goes on with its own beginning, so a loop of any period is continued in
// full. A tree merges what followed the last few occurrences, of longer n first; each weighs less than the one
// before.
class NgramDrafter : public HostDrafter {
 public:
  NgramDrafter(size_t min, size_t max);

  void reserve(size_t tokens) override;
  void truncate(size_t count) override;
  size_t propose(const int64_t* tokens, size_t count, size_t k, int64_t* draft) override;
  size_t propose_tree(const int64_t* tokens, size_t count, size_t k, int64_t* draft, int64_t* follows) override;

 private:
  // Open addressing from an n-gram to the position after its latest occurrence. Keys are not stored: an entry's n-gram
  // is read from the text itself.
  struct Table {
    std::vector<uint32_t> after;  // 0: free (nothing ends before position 1)
    size_t used = 0;
    std::vector<uint32_t> earlier;  // by such a position: that of the occurrence before; 0: none
  };

  void index(const int64_t* tokens, size_t count);
  void grow(Table& table, const int64_t* tokens, size_t n, size_t capacity);
  static uint32_t& slot(Table& table, const int64_t* tokens, size_t n, const int64_t* ngram);

  size_t min_;
  Continuations continuations_;
  std::vector<Table> tables_;  // tables_[i] for n = min_ + i
  size_t indexed_ = 0;         // n-grams that end before this position are in the tables
};

}  // namespace specc
