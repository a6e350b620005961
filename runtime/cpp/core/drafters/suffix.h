// Suffix decoding (arXiv 2411.04975) for one request: a tree of every substring of the text up to some depth, with
// counts. The longest suffix of the text that occurred before is continued by what most often followed; as a tree, by
// the likeliest of all that followed.
#pragma once

#include <vector>

#include "host_drafter.h"

namespace specc {

struct SuffixOptions {
  size_t max_depth = 24;
  double max_spec_factor = 1.0;  // longest proposal, in lengths of the match
  double min_token_prob = 0.1;   // a proposal ends where its estimated probability falls below
};

class SuffixDrafter : public HostDrafter {
 public:
  explicit SuffixDrafter(SuffixOptions options);

  void reserve(size_t tokens) override;
  void truncate(size_t count) override;
  size_t propose(const int64_t* tokens, size_t count, size_t k, int64_t* draft) override;
  size_t propose_tree(const int64_t* tokens, size_t count, size_t k, int64_t* draft, int64_t* follows) override;

 private:
  // A substring. Its occurrences that something follows are counted in `followers`, by what follows in the children.
  struct Node {
    int64_t token = 0;        // its last token
    uint32_t parent = 0;      // without its last token
    uint32_t suffix = 0;      // without its first token
    uint32_t count = 0;       // occurrences
    uint32_t followers = 0;   // sum of the children's counts
    uint32_t best_child = 0;  // the most frequent, of equals the most recent; 0: none
    uint32_t newest_child = 0, sibling = 0;  // all children, from the newest to the oldest
  };
  // What may become a node of a tree.
  struct Candidate {
    uint32_t node;
    double probability;
    size_t depth;
    int64_t follows;
  };
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = 0;  // the root is nobody's child

  void clear();
  void append(int64_t token);
  uint32_t known_suffix(const int64_t* tokens, size_t count, size_t& match);
  void consider(const Candidate& candidate, size_t most);
  void consider_children(uint32_t node, double probability, size_t depth, int64_t follows, size_t most);
  uint32_t visit_child(uint32_t parent, int64_t token, uint32_t suffix);
  uint32_t& slot(uint32_t parent, int64_t token);
  void grow_table(size_t capacity);

  SuffixOptions options_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> children_;  // open addressing from (parent, token) to the child; 0: free
  std::vector<uint32_t> tail_;      // tail_[d]: the node of the text's last d tokens
  std::vector<Candidate> candidates_;  // the likeliest last
  size_t indexed_ = 0;
};

}  // namespace specc
