#include "structure.h"

#include <algorithm>
#include <cmath>

namespace specc {
namespace {

constexpr size_t kSpans = 5;
constexpr double kSharpness = 10;       // of the softmax over similarities

double dot(const float* a, const float* b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

}  // namespace

size_t structure_columns(size_t count, size_t width) {
  return std::min<size_t>(width, count <= 256 ? 32 : count <= 1024 ? 128 : 256);
}

StructureDrafter::StructureDrafter(StructureOptions options) : options_(options) {
  continuations_.reserve(options_.max_matches, kWaySteps);
  matches_.reserve(options_.max_matches + 1);
}

void StructureDrafter::see(const float* rows, size_t width) {
  rows_ = rows;
  width_ = width;
}

void StructureDrafter::find(const int64_t* tokens, size_t count) {
  matches_.clear();
  if (count < 3 || rows_ == nullptr) return;
  const size_t last = count - 1, columns = structure_columns(count, width_);
  const float* now = rows_ + (last - 1) * width_;
  const double length = dot(now, now, columns);
  const size_t first = last > options_.max_window ? last - options_.max_window : 1;
  // From the latest on, so that of equals it comes first.
  for (size_t place = last - 1; place >= first; --place) {
    if (tokens[place] != tokens[last]) continue;
    const float* then = rows_ + (place - 1) * width_;
    const double similarity = dot(now, then, columns) / std::sqrt(length * dot(then, then, columns));
    if (!(similarity >= options_.min_similarity)) continue;  // NaN is like nothing
    const auto worse = [](const Match& a, const Match& b) { return a.similarity > b.similarity; };
    const Match match{similarity, place};
    matches_.insert(std::upper_bound(matches_.begin(), matches_.end(), match, worse), match);
    if (matches_.size() > options_.max_matches) matches_.pop_back();
  }
  rows_ = nullptr;  // the next round's may lie elsewhere
}

size_t StructureDrafter::propose(const int64_t* tokens, size_t count, size_t k, int64_t* draft) {
  find(tokens, count);
  if (matches_.empty()) return 0;
  copy_on(tokens, count, matches_.front().place + 1, k, draft);
  return k;
}

size_t StructureDrafter::propose_tree(const int64_t* tokens, size_t count, size_t k, int64_t* draft, int64_t* follows) {
  find(tokens, count);
  continuations_.clear();
  const size_t steps = std::min(k, kWaySteps);
  double total = 0;
  const auto weight = [&](const Match& match) {
    return std::exp(kSharpness * (match.similarity - matches_.front().similarity));
  };
  for (const Match& match : matches_) total += weight(match);
  for (const Match& match : matches_) {
    copy_on(tokens, count, match.place + 1, steps, draft);
    continuations_.add(draft, steps, weight(match) / total);
  }
  return continuations_.heaviest(k, kSpans, draft, follows);
}

}  // namespace specc
