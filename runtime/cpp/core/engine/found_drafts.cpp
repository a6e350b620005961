#include "found_drafts.h"

#include <algorithm>

namespace specc {
namespace {

constexpr uint64_t kFoundTries = 2;  // of a length before it is judged
constexpr double kTokensStep = 0.15;
constexpr uint64_t kFirstWait = 8, kLastWait = 256;

}  // namespace

FoundDrafts::FoundDrafts(size_t n_lengths) : arms_(n_lengths, {{}, 0, kFirstWait, kFirstWait}) {}

size_t FoundDrafts::choose(size_t longest, double rate) {
  size_t best = 0;
  for (size_t i = longest; i > 0; --i) {
    const Arm& arm = arms_[i];
    if (arm.cost.rounds < kFoundTries) return i;
    if (arm.tokens > rate * arm.cost.seconds) {
      rate = arm.tokens / arm.cost.seconds;
      best = i;
    }
  }
  if (best > 0 || longest == 0) return best;
  Arm& arm = arms_[longest];
  if (arm.wait > 0) {
    --arm.wait;
    return 0;
  }
  arm.wait = arm.interval = std::min(arm.interval * 2, kLastWait);
  return longest;
}

void FoundDrafts::observe(size_t index, size_t accepted, double seconds) {
  Arm& arm = arms_[index];
  arm.cost.observe(seconds);
  const double step = std::max(kTokensStep, 1.0 / static_cast<double>(arm.cost.rounds));
  const auto tokens = static_cast<double>(accepted + 1);
  if (tokens > arm.tokens) arm.interval = kFirstWait;
  arm.tokens += step * (tokens - arm.tokens);
}

}  // namespace specc
