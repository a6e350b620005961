// Several ways in which a text may go on, as one tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specc {

constexpr size_t kWaySteps = 64;  // of a way that a tree merges, at most

// What followed the place before `after`; where the copy reaches the end of the text it goes on with its own beginning.
void copy_on(const int64_t* tokens, size_t count, size_t after, size_t k, int64_t* draft);

// Ways that begin alike share nodes, and a node weighs what the ways through it weigh together, less with every step.
// So no node weighs as much as its parent, and the heaviest are a tree.
class Continuations {
 public:
  // Room for as many nodes as `ways` of `steps` may have, so that adding allocates nothing.
  void reserve(size_t ways, size_t steps);
  void clear();
  void add(const int64_t* tokens, size_t count, double weight);
  // Writes the `k` heaviest nodes at most, heaviest first and of equals the one that was there first: tokens, and the node
  // that each follows (0: the text itself, j + 1: the j-th written). Returns how many. A span is the nodes from where
  // ways part to where they part again; on no path are there more than `spans`, beyond which the heaviest way goes on alone.
  size_t heaviest(size_t k, size_t spans, int64_t* tokens, int64_t* follows);

 private:
  struct Node {
    int64_t token = 0;
    uint32_t parent = 0, first_child = 0, sibling = 0;  // 0: none, for the root is nobody's child
    double weight = 0;
    uint32_t place = 0;  // among those written, from 1 on
    uint32_t span = 0;   // on its path, from 1 on; 0: it is left out
  };

  void part(uint32_t node, size_t spans);

  std::vector<Node> nodes_;  // the root first
  std::vector<uint32_t> order_;
};

}  // namespace specc
