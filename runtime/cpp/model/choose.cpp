#include "choose.h"

#include <algorithm>

#include "choose_part.h"
#include "parallel.h"

namespace specc {
namespace {

// Logits worth another thread. A maximum reads them at memory's speed; noise is computed for each.
constexpr int64_t kLeastGreedy = 65536;
constexpr int64_t kLeastSampled = 8192;
constexpr int64_t kMaxParts = 64;

template <class Part>
Best best_of_parts(int64_t valid, int64_t least, const Part& part) {
  Best bests[kMaxParts];
  const int64_t parts = std::min(parts_for(valid, least), kMaxParts);
  parallel(parts, [&](int32_t i) {
    const Share mine = share(valid, i, parts);
    bests[i] = part(mine.begin, mine.end);
  });
  Best best = bests[0];
  for (int64_t i = 1; i < parts; i++) {
    if (bests[i].token >= 0) best.offer(bests[i].value, bests[i].token);
    best.any_nan |= bests[i].any_nan;
  }
  return best;
}

}  // namespace

Choice choose_greedy(const float* logits, int64_t valid) {
  const Best best =
      best_of_parts(valid, kLeastGreedy, [&](int64_t begin, int64_t end) { return greedy_part(logits, begin, end); });
  return {std::max<int64_t>(best.token, 0), best.any_nan};
}

Choice choose_sampled(const float* logits, int64_t valid, double temperature, uint64_t seed, uint64_t position) {
  const Choice greedy = choose_greedy(logits, valid);
  if (greedy.any_nan) return greedy;
  const Sampling sampling{logits, temperature, noise_key(seed, position)};
  Best start;  // a good first value rules out most of the others
  start.offer(sampling.value(greedy.token), greedy.token);
  const Best best = best_of_parts(valid, kLeastSampled, [&](int64_t begin, int64_t end) {
    Best mine = start;
    sample_part(sampling, begin, end, mine);
    return mine;
  });
  return {best.token, false};
}

}  // namespace specc
