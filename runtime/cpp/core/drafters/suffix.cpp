#include "suffix.h"

#include <algorithm>
#include <utility>

#include "hash.h"

namespace specc {
namespace {

// About 150 MB at the very most. Beyond it the tree still counts what it knows but learns no new substring.
constexpr size_t kMaxNodes = size_t{1} << 22;
constexpr size_t kSuffixCapacity = 256;

}  // namespace

SuffixDrafter::SuffixDrafter(SuffixOptions options) : options_(options) { clear(); }

void SuffixDrafter::clear() {
  nodes_.assign(1, Node{});
  std::fill(children_.begin(), children_.end(), kNone);
  if (children_.empty()) children_.resize(kSuffixCapacity, kNone);
  tail_.reserve(options_.max_depth + 1);
  tail_.assign(1, kRoot);
  indexed_ = 0;
}

void SuffixDrafter::reserve(size_t tokens) {
  // At most max_depth new substrings per token; far fewer in text that repeats itself.
  const size_t nodes = std::min(kMaxNodes, tokens >= kMaxNodes ? kMaxNodes : tokens * options_.max_depth + 1);
  nodes_.reserve(nodes);
  if (children_.size() < capacity_for(kSuffixCapacity, nodes)) grow_table(capacity_for(kSuffixCapacity, nodes));
}

void SuffixDrafter::truncate(size_t count) {
  if (count < indexed_) clear();  // counts cannot be taken back in order of recency: learn the text again
}

uint32_t& SuffixDrafter::slot(uint32_t parent, int64_t token) {
  const size_t mask = children_.size() - 1;
  for (size_t i = mix(mix(static_cast<uint64_t>(token)) + parent) & mask;; i = (i + 1) & mask) {
    const uint32_t child = children_[i];
    if (child == kNone || (nodes_[child].parent == parent && nodes_[child].token == token)) return children_[i];
  }
}

void SuffixDrafter::grow_table(size_t capacity) {
  children_.assign(capacity, kNone);
  for (uint32_t node = 1; node < nodes_.size(); ++node) slot(nodes_[node].parent, nodes_[node].token) = node;
}

// Counts one more occurrence of `parent` followed by `token`. Returns kNone if the tree is full and does not know it.
uint32_t SuffixDrafter::visit_child(uint32_t parent, int64_t token, uint32_t suffix) {
  uint32_t child = slot(parent, token);
  if (child == kNone) {
    if (nodes_.size() >= kMaxNodes) return kNone;
    if (children_.size() < 2 * (nodes_.size() + 1)) grow_table(2 * children_.size());
    child = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back({token, parent, suffix, 0, 0, kNone});
    slot(parent, token) = child;
  }
  Node& owner = nodes_[parent];
  ++owner.followers;
  if (++nodes_[child].count >= nodes_[owner.best_child].count) owner.best_child = child;
  return child;
}

void SuffixDrafter::append(int64_t token) {
  // Every suffix of the text grows by the token, the longest falls out. From short to long, so that a node's suffix
  // exists.
  const size_t depth = std::min(tail_.size(), options_.max_depth);
  uint32_t suffix = kRoot;  // the node of the new text's last d tokens
  uint32_t parent = tail_[0];
  size_t known = 0;
  for (size_t d = 0; d < depth; ++d) {
    const uint32_t child = visit_child(parent, token, suffix);
    if (child == kNone) break;  // full: longer ones are unknown as well
    if (d + 1 < tail_.size()) {
      parent = std::exchange(tail_[d + 1], child);
    } else {
      tail_.push_back(child);
    }
    suffix = child;
    known = d + 1;
  }
  tail_.resize(known + 1);
}

size_t SuffixDrafter::propose(const int64_t* tokens, size_t count, size_t k, int64_t* draft) {
  for (; indexed_ < count; ++indexed_) append(tokens[indexed_]);

  size_t match = tail_.size() - 1;
  while (match > 0 && nodes_[tail_[match]].followers == 0) --match;
  if (match == 0) return 0;  // the frequencies of single tokens alone predict nothing

  const double longest = options_.max_spec_factor * static_cast<double>(match);
  const size_t limit = longest < static_cast<double>(k) ? static_cast<size_t>(longest) : k;
  uint32_t node = tail_[match];
  double probability = 1;
  size_t length = 0;
  while (length < limit) {
    // A substring of the greatest depth, or one that ends the text, has no children: ask its suffix.
    while (nodes_[node].best_child == kNone && node != kRoot) node = nodes_[node].suffix;
    if (node == kRoot) break;
    const Node& child = nodes_[nodes_[node].best_child];
    probability *= static_cast<double>(child.count) / nodes_[node].followers;
    if (probability < options_.min_token_prob) break;
    draft[length++] = child.token;
    node = nodes_[node].best_child;
  }
  return length;
}

}  // namespace specc
