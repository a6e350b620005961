#include "ngram.h"

#include <algorithm>
#include <limits>

#include "hash.h"

namespace specc {
namespace {

constexpr size_t kNgramCapacity = 64;
constexpr size_t kMaxText = std::numeric_limits<uint32_t>::max();
constexpr size_t kWays = 8;       // that a tree merges
constexpr double kEarlier = 0.6;  // what a way weighs of the one before it
constexpr size_t kLooked = 64;    // occurrences of one n that are looked at for them

}  // namespace

NgramDrafter::NgramDrafter(size_t min, size_t max) : min_(min), tables_(max - min + 1) {
  continuations_.reserve(kWays, kWaySteps);
}

void NgramDrafter::reserve(size_t tokens) {
  for (auto& table : tables_) {
    table.earlier.reserve(tokens + 1);
    const size_t capacity = capacity_for(kNgramCapacity, tokens);
    if (table.after.size() >= capacity) continue;
    table.after.assign(capacity, 0);
    table.used = 0;
    indexed_ = 0;  // everything is indexed anew at the next proposal
  }
  if (indexed_ == 0) truncate(0);
}

void NgramDrafter::truncate(size_t count) {
  // An entry may have replaced an older occurrence that would now be the latest again, so start over. Positions before
  // `indexed_` are those of n-grams with a follower: indexed_ < text.
  if (count > indexed_) return;
  for (auto& table : tables_) {
    std::fill(table.after.begin(), table.after.end(), 0);
    table.used = 0;
    table.earlier.clear();
  }
  indexed_ = 0;
}

// The slot of an n-gram: where it is, or the free one where it would go.
uint32_t& NgramDrafter::slot(Table& table, const int64_t* tokens, size_t n, const int64_t* ngram) {
  const size_t mask = table.after.size() - 1;
  for (size_t i = hash_tokens(ngram, n) & mask;; i = (i + 1) & mask) {
    uint32_t& after = table.after[i];
    if (after == 0 || std::equal(ngram, ngram + n, tokens + after - n)) return after;
  }
}

void NgramDrafter::grow(Table& table, const int64_t* tokens, size_t n, size_t capacity) {
  Table larger{std::vector<uint32_t>(capacity, 0), table.used, std::move(table.earlier)};
  for (const uint32_t after : table.after) {
    if (after != 0) slot(larger, tokens, n, tokens + after - n) = after;
  }
  table = std::move(larger);
}

void NgramDrafter::index(const int64_t* tokens, size_t count) {
  // Only n-grams that something follows: those that end before the last token. `after` is that follower's position.
  for (; indexed_ + 1 < count; ++indexed_) {
    const size_t after = indexed_ + 1;
    for (size_t i = 0; i < tables_.size() && min_ + i <= after; ++i) {
      Table& table = tables_[i];
      const size_t n = min_ + i;
      if (2 * (table.used + 1) > table.after.size()) grow(table, tokens, n, capacity_for(kNgramCapacity, table.used + 1));
      uint32_t& place = slot(table, tokens, n, tokens + after - n);
      table.used += place == 0;
      table.earlier.resize(after + 1, 0);
      table.earlier[after] = place;
      place = static_cast<uint32_t>(after);
    }
  }
}

size_t NgramDrafter::propose(const int64_t* tokens, size_t count, size_t k, int64_t* draft) {
  if (count > kMaxText) return 0;
  index(tokens, count);
  for (size_t i = tables_.size(); i-- > 0;) {
    const size_t n = min_ + i;
    if (n >= count || tables_[i].used == 0) continue;
    const size_t after = slot(tables_[i], tokens, n, tokens + count - n);
    if (after == 0) continue;
    copy_on(tokens, count, after, k, draft);
    return k;
  }
  return 0;
}

size_t NgramDrafter::propose_tree(const int64_t* tokens, size_t count, size_t k, int64_t* draft, int64_t* follows) {
  if (count > kMaxText) return 0;
  index(tokens, count);
  continuations_.clear();
  const size_t steps = std::min(k, kWaySteps);
  double weight = 1;
  size_t ways = 0;
  for (size_t i = tables_.size(); i-- > 0 && ways < kWays;) {
    const size_t n = min_ + i;
    if (n >= count || tables_[i].used == 0) continue;
    size_t after = slot(tables_[i], tokens, n, tokens + count - n);
    for (size_t looked = 0; after != 0 && looked < kLooked && ways < kWays; ++looked) {
      // One that a longer n found is there already.
      const bool found = i + 1 < tables_.size() && after > n && tokens[after - n - 1] == tokens[count - n - 1];
      if (!found) {
        copy_on(tokens, count, after, steps, draft);
        continuations_.add(draft, steps, weight);
        weight *= kEarlier;
        ++ways;
      }
      after = tables_[i].earlier[after];
    }
  }
  return continuations_.heaviest(k, kWays, draft, follows);
}

}  // namespace specc
