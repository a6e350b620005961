#include "continuations.h"

#include <algorithm>

namespace specc {
namespace {

// What is left of a way's weight with every step: how often the next token of a copy is right, more or less.
constexpr double kStep = 0.75;

}  // namespace

void Continuations::reserve(size_t ways, size_t steps) {
  nodes_.reserve(ways * steps + 1);
  order_.reserve(ways * steps);
  clear();
}

void Continuations::clear() { nodes_.assign(1, Node{}); }

void Continuations::add(const int64_t* tokens, size_t count, double weight) {
  uint32_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t child = nodes_[at].first_child;
    while (child != 0 && nodes_[child].token != tokens[i]) child = nodes_[child].sibling;
    if (child == 0) {
      child = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({tokens[i], at, 0, nodes_[at].first_child, 0, 0});
      nodes_[at].first_child = child;
    }
    nodes_[child].weight += weight *= kStep;
    at = child;
  }
}

size_t Continuations::heaviest(size_t k, int64_t* tokens, int64_t* follows) {
  order_.clear();
  for (uint32_t node = 1; node < nodes_.size(); ++node) order_.push_back(node);
  const size_t count = std::min(k, order_.size());
  const auto heavier = [&](uint32_t a, uint32_t b) {
    return nodes_[a].weight != nodes_[b].weight ? nodes_[a].weight > nodes_[b].weight : a < b;
  };
  std::partial_sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(count), order_.end(), heavier);
  for (size_t i = 0; i < count; ++i) {
    Node& node = nodes_[order_[i]];
    node.place = static_cast<uint32_t>(i + 1);
    tokens[i] = node.token;
    follows[i] = nodes_[node.parent].place;  // the root's is 0
  }
  return count;
}

}  // namespace specc
