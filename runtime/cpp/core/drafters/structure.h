// Retrieval by what the model thought (after DReSD, arXiv 2502.15572): earlier places of the text where it was in a state
// like now's, and how the text went on there.
#pragma once

#include <vector>

#include "continuations.h"
#include "host_drafter.h"

namespace specc {

struct StructureOptions {
  size_t max_matches = 8;     // places whose continuations are merged
  size_t max_window = 4096;   // tokens back that are looked at
  double min_similarity = 0;  // cosine
};

// Of the text x[0..n], row p of what it sees is a small vector of the model's state at x[p], its first columns saying
// most. A place is p with x[p] = x[n], and as like it as row p-1 is to row n-1: an induction head, built by hand. Of
// equals the later one is better. What followed the best few is merged into a tree of at most five spans.
class StructureDrafter : public HostDrafter {
 public:
  explicit StructureDrafter(StructureOptions options);

  void reserve(size_t) override {}
  void truncate(size_t) override {}
  void see(const float* rows, size_t width) override;
  size_t propose(const int64_t* tokens, size_t count, size_t k, int64_t* draft) override;
  size_t propose_tree(const int64_t* tokens, size_t count, size_t k, int64_t* draft, int64_t* follows) override;

 private:
  struct Match {
    double similarity;
    size_t place;
  };

  void find(const int64_t* tokens, size_t count);

  StructureOptions options_;
  Continuations continuations_;
  std::vector<Match> matches_;  // the best first
  const float* rows_ = nullptr;
  size_t width_ = 0;
};

// Columns that are compared in a text of so many tokens.
size_t structure_columns(size_t count, size_t width);

}  // namespace specc
