#include "suffix.h"

#include <algorithm>
#include <utility>

#include "hash.h"

namespace specc {
namespace {

// About 200 MB at the very most. Beyond it the tree still counts what it knows but learns no new substring.
constexpr size_t kMaxNodes = size_t{1} << 22;
constexpr size_t kSuffixCapacity = 256;
constexpr size_t kMostCandidates = 1024;  // of a tree, which has no more nodes

}  // namespace

SuffixDrafter::SuffixDrafter(SuffixOptions options) : options_(options) { clear(); }

void SuffixDrafter::clear() {
  nodes_.assign(1, Node{});
  std::fill(children_.begin(), children_.end(), kNone);
  if (children_.empty()) children_.resize(kSuffixCapacity, kNone);
  tail_.reserve(options_.max_depth + 1);
  candidates_.reserve(kMostCandidates + 1);
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
    nodes_.push_back({token, parent, suffix, 0, 0, kNone, kNone, nodes_[parent].newest_child});
    nodes_[parent].newest_child = child;
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

// The node of the longest suffix that something followed, and its length; the root if there is none.
uint32_t SuffixDrafter::known_suffix(const int64_t* tokens, size_t count, size_t& match) {
  for (; indexed_ < count; ++indexed_) append(tokens[indexed_]);
  match = tail_.size() - 1;
  while (match > 0 && nodes_[tail_[match]].followers == 0) --match;
  return tail_[match];
}

size_t SuffixDrafter::propose(const int64_t* tokens, size_t count, size_t k, int64_t* draft) {
  size_t match = 0;
  uint32_t node = known_suffix(tokens, count, match);
  if (node == kRoot) return 0;  // the frequencies of single tokens alone predict nothing

  const double longest = options_.max_spec_factor * static_cast<double>(match);
  const size_t limit = longest < static_cast<double>(k) ? static_cast<size_t>(longest) : k;
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

// Keeps the `most` likeliest, of equals those that came first.
void SuffixDrafter::consider(const Candidate& candidate, size_t most) {
  if (candidate.probability < options_.min_token_prob) return;
  const auto place = std::lower_bound(
      candidates_.begin(), candidates_.end(), candidate,
      [](const Candidate& a, const Candidate& b) { return a.probability < b.probability; });
  if (candidates_.size() == most && place == candidates_.begin()) return;
  candidates_.insert(place, candidate);
  if (candidates_.size() > most) candidates_.erase(candidates_.begin());
}

void SuffixDrafter::consider_children(uint32_t node, double probability, size_t depth, int64_t follows, size_t most) {
  // As in a chain, a substring without children asks its suffix.
  while (nodes_[node].best_child == kNone && node != kRoot) node = nodes_[node].suffix;
  if (node == kRoot) return;
  const uint32_t best = nodes_[node].best_child;
  const double share = probability / nodes_[node].followers;
  consider({best, nodes_[best].count * share, depth, follows}, most);
  for (uint32_t child = nodes_[node].newest_child; child != kNone; child = nodes_[child].sibling) {
    if (child != best) consider({child, nodes_[child].count * share, depth, follows}, most);
  }
}

size_t SuffixDrafter::propose_tree(const int64_t* tokens, size_t count, size_t k, int64_t* draft, int64_t* follows) {
  size_t match = 0;
  const uint32_t start = known_suffix(tokens, count, match);
  if (start == kRoot) return 0;
  const double longest = options_.max_spec_factor * static_cast<double>(match);
  k = std::min(k, kMostCandidates);
  candidates_.clear();
  if (longest >= 1) consider_children(start, 1, 1, 0, k);
  size_t size = 0;
  while (size < k && !candidates_.empty()) {
    const Candidate next = candidates_.back();
    candidates_.pop_back();
    draft[size] = nodes_[next.node].token;
    follows[size++] = next.follows;
    if (static_cast<double>(next.depth + 1) > longest) continue;
    consider_children(next.node, next.probability, next.depth + 1, static_cast<int64_t>(size), k - size);
  }
  return size;
}

}  // namespace specc
