#include "logprobs.h"

#include <algorithm>
#include <cmath>

#include "../../model/choose_part.h"

namespace specc {
namespace {

bool better(const std::pair<float, int64_t>& a, const std::pair<float, int64_t>& b) {
  return a.first > b.first || (a.first == b.first && a.second < b.second);
}

}  // namespace

double log_sum(const float* logits, size_t vocab_size) {
  const double highest = greedy_part(logits, 0, static_cast<int64_t>(vocab_size)).value;
  double sum = 0;
  for (size_t v = 0; v < vocab_size; ++v) sum += std::exp(static_cast<double>(logits[v]) - highest);
  return highest + std::log(sum);
}

void best_of(const float* logits, size_t vocab_size, size_t n, std::vector<std::pair<float, int64_t>>& heap) {
  heap.clear();
  for (size_t v = 0; n > 0 && v < vocab_size; ++v) {
    const std::pair<float, int64_t> candidate{logits[v], static_cast<int64_t>(v)};
    if (heap.size() == n) {
      if (!better(candidate, heap.front())) continue;
      std::pop_heap(heap.begin(), heap.end(), better);
      heap.pop_back();
    }
    heap.push_back(candidate);
    std::push_heap(heap.begin(), heap.end(), better);
  }
  std::sort_heap(heap.begin(), heap.end(), better);
}

}  // namespace specc
