#include "continuations.h"

#include <algorithm>

namespace specc {
namespace {

// What is left of a way's weight with every step: how often the next token of a copy is right, more or less.
constexpr double kStep = 0.75;

}  // namespace

void copy_on(const int64_t* tokens, size_t count, size_t after, size_t k, int64_t* draft) {
  for (size_t j = 0; j < k; ++j) draft[j] = after + j < count ? tokens[after + j] : draft[after + j - count];
}

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
      nodes_.push_back({tokens[i], at, 0, nodes_[at].first_child, 0, 0, 0});
      nodes_[at].first_child = child;
    }
    nodes_[child].weight += weight *= kStep;
    at = child;
  }
}

// Says to which span the children of a node belong.
void Continuations::part(uint32_t node, size_t spans) {
  const uint32_t first = nodes_[node].first_child;
  if (first == 0) return;
  const bool parts = node == 0 || nodes_[first].sibling != 0;
  if (!parts || nodes_[node].span < spans) {
    const uint32_t span = nodes_[node].span + (parts ? 1 : 0);
    for (uint32_t child = first; child != 0; child = nodes_[child].sibling) nodes_[child].span = span;
    return;
  }
  uint32_t best = first;  // children stand from the newest to the oldest
  for (uint32_t child = first; child != 0; child = nodes_[child].sibling) {
    nodes_[child].span = 0;
    if (nodes_[child].weight >= nodes_[best].weight) best = child;
  }
  nodes_[best].span = nodes_[node].span;
}

size_t Continuations::heaviest(size_t k, size_t spans, int64_t* tokens, int64_t* follows) {
  order_.clear();
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    if (node == 0 || nodes_[node].span > 0) {
      part(node, spans);
      if (node > 0) order_.push_back(node);
    } else {
      for (uint32_t child = nodes_[node].first_child; child != 0; child = nodes_[child].sibling) nodes_[child].span = 0;
    }
  }
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
