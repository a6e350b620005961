#include "law.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace specc {
namespace {

// So many that keeping a heap of them would cost more than ordering the row.
constexpr int64_t kMostInHeap = 1024;

}  // namespace

double weight(float logit, float highest, double temperature) {
  if (logit == highest) return 1;  // also where both are infinite
  return std::exp((static_cast<double>(logit) - static_cast<double>(highest)) / temperature);
}

void Filter::reserve() {
  ids_.reserve(vocab_size_);
  order_.reserve(vocab_size_);
  heap_.reserve(vocab_size_);
  mass_.reserve(vocab_size_);
}

const std::vector<int32_t>& Filter::keep(const float* logits, float highest, const SamplingParams& params) {
  ids_.clear();
  if (params.top_k > 0 && params.top_k < static_cast<int64_t>(vocab_size_)) {
    keep_top_k(logits, highest, params);
  } else {
    for (size_t v = 0; v < vocab_size_; ++v) {
      if (logits[v] > -__builtin_inff()) ids_.push_back(static_cast<int32_t>(v));
    }
  }
  if (params.min_p > 0) {
    // vLLM's order puts it before top_k. As it takes from below only, what both leave is the same either way.
    const auto unlikely = [&](int32_t v) { return weight(logits[v], highest, params.temperature) < params.min_p; };
    ids_.erase(std::remove_if(ids_.begin(), ids_.end(), unlikely), ids_.end());
  }
  if (params.top_p < 1) keep_top_p(logits, highest, params);
  return ids_;
}

// All that are no less than the k-th largest.
void Filter::keep_top_k(const float* logits, float highest, const SamplingParams& params) {
  float least = -__builtin_inff();
  const auto descending = std::greater<float>();
  if (params.top_k == 1) {
    least = highest;
  } else if (params.top_k <= kMostInHeap) {
    heap_.assign(logits, logits + params.top_k);
    std::make_heap(heap_.begin(), heap_.end(), descending);
    for (size_t v = static_cast<size_t>(params.top_k); v < vocab_size_; ++v) {
      if (logits[v] <= heap_.front()) continue;
      std::pop_heap(heap_.begin(), heap_.end(), descending);
      heap_.back() = logits[v];
      std::push_heap(heap_.begin(), heap_.end(), descending);
    }
    least = heap_.front();
  } else {
    heap_.assign(logits, logits + vocab_size_);
    std::nth_element(heap_.begin(), heap_.begin() + (params.top_k - 1), heap_.end(), descending);
    least = heap_[static_cast<size_t>(params.top_k - 1)];
  }
  for (size_t v = 0; v < vocab_size_; ++v) {
    if (logits[v] >= least && logits[v] > -__builtin_inff()) ids_.push_back(static_cast<int32_t>(v));
  }
}

// The fewest of the likeliest whose mass reaches top_p: a token stays if those before it have less.
void Filter::keep_top_p(const float* logits, float highest, const SamplingParams& params) {
  mass_.clear();
  for (const int32_t v : ids_) mass_.push_back(weight(logits[v], highest, params.temperature));
  const double total = std::accumulate(mass_.begin(), mass_.end(), 0.0);
  // Even all tokens as unlikely as this have no more than the mass that is left out: they need not be put in order.
  const double never = (1 - params.top_p) * total / static_cast<double>(ids_.size()) * (1 - 1e-9);
  order_.clear();
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (mass_[i] > never) order_.push_back(static_cast<int32_t>(i));
  }
  std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    const float left = logits[ids_[static_cast<size_t>(a)]], right = logits[ids_[static_cast<size_t>(b)]];
    return left > right || (left == right && a < b);
  });
  double before = 0;
  size_t kept = 0;
  while (kept < order_.size() && (kept == 0 || before < params.top_p * total)) {
    before += mass_[static_cast<size_t>(order_[kept++])];
  }
  order_.resize(kept);
  std::sort(order_.begin(), order_.end());
  for (size_t i = 0; i < kept; ++i) ids_[i] = ids_[static_cast<size_t>(order_[i])];  // order_[i] >= i
  ids_.resize(kept);
}

void Law::reserve(size_t vocab_size) {
  ids.reserve(vocab_size);
  mass.reserve(vocab_size);
}

void Law::set(const float* logits, size_t vocab_size, float highest, double temperature,
              const std::vector<int32_t>* kept) {
  if (kept != nullptr) {
    ids.assign(kept->begin(), kept->end());
  } else {
    ids.resize(vocab_size);
    std::iota(ids.begin(), ids.end(), 0);
  }
  mass.clear();
  for (const int32_t id : ids) mass.push_back(weight(logits[id], highest, temperature));
  normalise();
}

double Law::of(int64_t id) const {
  const auto found = std::lower_bound(ids.begin(), ids.end(), id);
  return found == ids.end() || *found != id ? 0 : mass[static_cast<size_t>(found - ids.begin())];
}

bool Law::normalise() {
  const double total = std::accumulate(mass.begin(), mass.end(), 0.0);
  if (!(total > 0)) return false;
  for (double& each : mass) each /= total;
  return true;
}

int64_t draw(const Law& law, double u) {
  const double total = std::accumulate(law.mass.begin(), law.mass.end(), 0.0);
  double below = 0;
  size_t last = 0;
  for (size_t i = 0; i < law.mass.size(); ++i) {
    if (!(law.mass[i] > 0)) continue;
    last = i;
    below += law.mass[i];
    if (below > u * total) break;
  }
  return law.ids[last];
}

}  // namespace specc
