#include "candidates.h"

#include <algorithm>
#include <cmath>

#include "attention_math.h"
#include "choose_part.h"

namespace specc {
namespace {

// The best so far, best first; tokens come in ascending order, so that of equals the lowest id stays in front.
struct Ranking {
  Candidate* best;
  int64_t count, held = 0;

  double least() const { return held < count ? -__builtin_inf() : best[count - 1].value; }
  void offer(double value, int64_t token) {
    if (held == count && !(value > best[count - 1].value)) return;
    int64_t place = held < count ? held++ : count - 1;
    for (; place > 0 && value > best[place - 1].value; place--) best[place] = best[place - 1];
    best[place] = {token, value};
  }
};

float maximum(const float* logits, int64_t count) {
  bool any_nan = false;  // of no interest
  return block_maximum(logits, count, &any_nan);
}

double usable(float logit) { return logit == logit ? logit : -__builtin_inf(); }

// log of the sum of exp(logit - top) over the vocabulary, in sixteen lanes whatever the ISA.
double log_total(const float* logits, int64_t valid, float top) {
  F16 lanes = {};
  double total = 0;
  const auto add = [&](const F16& x) {
    const F16 y = exp_down(x - top);
    lanes += y == y ? y : F16{};
  };
  int64_t v = 0;
  for (; v + kLanes <= valid; v += kLanes) {
    add(load<F16>(logits + v));
    if (v % 4096 == 0) {  // floats count exactly enough over so many
      for (int i = 0; i < kLanes; i++) total += lanes[i];
      lanes = F16{};
    }
  }
  for (int i = 0; i < kLanes; i++) total += lanes[i];
  for (; v < valid; v++) total += std::exp(usable(logits[v]) - top);
  return std::log(total);
}

// Values become logarithms of parts of a whole; of an infinite one nothing can be told, and nothing is likely.
void share_out(Candidate* best, int64_t count, double whole) {
  const bool known = std::isfinite(best[0].value);
  for (int64_t i = 0; i < count; i++) best[i].value = known ? best[i].value - whole : -__builtin_inf();
}

}  // namespace

void best_tokens(const float* logits, int64_t valid, int64_t count, Candidate* best) {
  Ranking ranking{best, count};
  for (int64_t block = 0; block < valid; block += kSampledBlock) {
    const int64_t stop = std::min(block + kSampledBlock, valid);
    if (ranking.held == count && !(maximum(logits + block, stop - block) > ranking.least())) continue;
    for (int64_t v = block; v < stop; v++) ranking.offer(usable(logits[v]), v);
  }
  const double top = best[0].value;
  share_out(best, count, std::isinf(top) ? 0 : top + log_total(logits, valid, static_cast<float>(top)));
}

void best_sampled(const float* logits, int64_t valid, int64_t count, double temperature, uint64_t seed,
                  uint64_t position, Candidate* best) {
  const uint64_t key = noise_key(seed, position);
  const auto value = [&](int64_t v) {
    return usable(logits[v]) / temperature + gumbel(noise_bits(key, static_cast<uint64_t>(v)));
  };
  // What the best logits reach with their noise, `count` tokens reach: whatever is surely below need not be computed.
  Ranking first{best, count};
  for (int64_t v = 0; v < valid; v++) first.offer(usable(logits[v]), v);
  double bar = __builtin_inf();
  for (int64_t i = 0; i < count; i++) bar = std::min(bar, value(best[i].token));
  Ranking ranking{best, count};
  const double inverse = 1 / temperature;
  for (int64_t block = 0; block < valid; block += kSampledBlock) {
    const int64_t stop = std::min(block + kSampledBlock, valid);
    const double highest = ceiling(maximum(logits + block, stop - block), inverse);
    const uint64_t least = least_bits(std::max(bar, ranking.least()) - highest);
    for (int64_t v = block; v < stop; v++) {
      const uint64_t bits = noise_bits(key, static_cast<uint64_t>(v));
      if (bits < least) continue;
      const double logit = usable(logits[v]), need = std::max(bar, ranking.least());
      if (ceiling(logit, inverse) + gumbel_bound(bits) < need) continue;
      ranking.offer(value(v), v);
    }
  }
  double total = 0;
  for (int64_t i = 0; i < count; i++) total += std::exp(best[i].value - best[0].value);
  share_out(best, count, best[0].value + std::log(total));
}

}  // namespace specc
