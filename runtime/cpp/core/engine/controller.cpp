#include "controller.h"

#include <algorithm>

namespace specc {
namespace {

constexpr uint64_t kTries = 2;        // of an arm before it is judged by its own cost
constexpr uint64_t kFirstRounds = 16;  // in which the best so far is followed at once
constexpr size_t kNotProbing = static_cast<size_t>(-1);
constexpr double kPriorAcceptance = 0.6;
constexpr double kAcceptanceStep = 0.03;
constexpr uint64_t kDwell = 4;
// A longer draft must promise more than noise; a shorter one need only be better: losing by a little is still losing.
constexpr double kGainToLengthen = 1.05, kGainToShorten = 1.01;
constexpr uint64_t kFirstProbe = 16, kSoonProbe = 4, kLastProbe = 512;
constexpr double kProbeShare = 0.015;  // of the time, for probes expected to lose, and what they catch up on

// What drafting may lose against plain decoding, in rounds without drafts: a share of the tokens, a little at once so
// that the first rounds may try, and of what was saved before.
constexpr double kLossShare = 0.01, kFirstLoss = 0.25, kMostSaved = 32, kMostOwed = 4;

constexpr double kDepthStep = 0.05;
constexpr double kShallower = 0.85, kDeeper = 0.60;
constexpr uint64_t kDepthDwell = 20;
constexpr int64_t kDepthFloor = 2;

}  // namespace

LengthController::LengthController(std::vector<int64_t> lengths, RoundCosts* shared)
    : lengths_(std::move(lengths)),
      arms_(lengths_.size()),
      shared_(shared),
      acceptance_(static_cast<size_t>(lengths_.back()), kPriorAcceptance),
      acceptance_seen_(acceptance_.size(), 0),
      saved_(kFirstLoss),
      probe_interval_(kFirstProbe),
      rounds_to_probe_(kFirstProbe),
      probing_(kNotProbing) {
  for (size_t i = 0; shared != nullptr && i < arms_.size(); ++i) {
    if (const double seconds = shared->seconds(i); seconds > 0) arms_[i] = {ArmCost::kFewRounds, seconds};
  }
}

size_t LengthController::choose() {
  if (arms_.size() == 1) return 0;
  if (rounds_ < kFirstRounds) {
    // A drafter that finds nothing plays 0 whatever is chosen, so rounds are counted, not choices.
    for (const size_t first : {size_t{1}, size_t{0}}) {
      if (arms_[first].rounds < kTries && arms_[first].rounds <= arms_[1 - first].rounds) return current_ = first;
    }
    settle(1, 1);
    return affordable(current_);
  }
  if (rounds_to_probe_ > 0) --rounds_to_probe_;
  probe_allowance_ += kProbeShare;
  const size_t next = next_to_probe();
  if (rounds_to_probe_ > 0 || cost_of_probe(next) > probe_allowance_ || affordable(next) != next) {
    return affordable(current_);
  }
  probe_allowance_ -= cost_of_probe(next);
  probing_ = next_probe_ = next;
  rounds_to_probe_ = probe_interval_;
  return probing_;
}

size_t LengthController::next_to_probe() const {
  const size_t next = (next_probe_ + 1) % arms_.size();
  return next == current_ ? (next + 1) % arms_.size() : next;
}

// The longest draft up to this one that could be refused as a whole without losing more than is allowed.
size_t LengthController::affordable(size_t index) const {
  while (index > 0 && seconds(index) / seconds(0) - 1 > saved_) --index;
  return index;
}

// What a round of this arm is expected to lose, in rounds of the current one. One that was measured once may have been
// interrupted, and is taken to cost as much as its tokens one by one.
double LengthController::cost_of_probe(size_t index) const {
  const double excess = seconds(index) / seconds(current_) - expected_tokens(index) / expected_tokens(current_);
  if (arms_[index].rounds >= kTries) return std::max(excess, 0.0);
  return std::clamp(excess, 0.0, static_cast<double>(lengths_[index] + 1));
}

void LengthController::observe(size_t index, size_t accepted, double seconds, double catch_up_seconds) {
  learn_acceptance(static_cast<size_t>(lengths_[index]), accepted);
  learn_cost(index, seconds);
  if (arms_.size() == 1) return;
  account(index, accepted, catch_up_seconds);
  if (++rounds_ <= kFirstRounds) return;
  const size_t before = current_;
  if (index == probing_) probe_allowance_ -= catch_up_seconds / this->seconds(current_);
  ++rounds_in_arm_;
  if (rounds_in_arm_ >= kDwell) settle(kGainToLengthen, kGainToShorten);
  if (current_ != before) {
    rounds_in_arm_ = 0;
    probe_interval_ = rounds_to_probe_ = kFirstProbe;
  } else if (index == probing_) {
    schedule_probe(static_cast<double>(accepted + 1) > rate(current_) * seconds);
  }
  probing_ = kNotProbing;
}

// The first round of a length is no measure of the next ones, and is paid for once for all texts.
void LengthController::account(size_t index, size_t accepted, double catch_up_seconds) {
  const double plain = seconds(0);
  const double cost = arms_[index].rounds < kTries ? 1 : seconds(index) / plain;
  saved_ += static_cast<double>(accepted + 1) * (1 + kLossShare) - cost - catch_up_seconds / plain;
  saved_ = std::clamp(saved_, -kMostOwed, kMostSaved);
}

// A probe that went well is repeated soon, since one round proves little; one that did not makes the next one rarer.
void LengthController::schedule_probe(bool promising) {
  probe_interval_ = promising ? kSoonProbe : std::min(std::max(probe_interval_, kFirstProbe) * 2, kLastProbe);
  if (promising) next_probe_ = (next_probe_ + arms_.size() - 1) % arms_.size();  // the same arm again
  rounds_to_probe_ = probe_interval_;
}

void LengthController::settle(double gain_to_lengthen, double gain_to_shorten) {
  size_t best = current_;
  for (size_t i = 0; i < arms_.size(); ++i) {
    if (rate(i) > rate(best)) best = i;
  }
  const double gain = best > current_ ? gain_to_lengthen : gain_to_shorten;
  if (rate(best) > gain * rate(current_)) current_ = best;
}

void LengthController::learn_acceptance(size_t length, size_t accepted) {
  for (size_t i = 0; i < length && i <= accepted; ++i) {
    // The prior counts as one observation; later the step settles at its floor, so that the past fades.
    const double step = std::max(kAcceptanceStep, 1.0 / static_cast<double>(++acceptance_seen_[i] + 1));
    acceptance_[i] += step * ((i < accepted ? 1.0 : 0.0) - acceptance_[i]);
  }
}

void LengthController::learn_cost(size_t index, double seconds) {
  ArmCost& arm = arms_[index];
  arm.observe(seconds);
  if (shared_ != nullptr && arm.rounds >= kTries) shared_->publish(index, arm.seconds);
}

double LengthController::seconds(size_t index) const {
  // Not seen yet: as cheap as the next shorter one that was, so that it gets its try.
  for (size_t i = index + 1; i-- > 0;) {
    if (arms_[i].rounds > 0) return std::max(arms_[i].seconds, 1e-9);
  }
  return 1;
}

double LengthController::expected_tokens(size_t index) const {
  double tokens = 1, survival = 1, acceptance = kPriorAcceptance;
  for (size_t i = 0; i < static_cast<size_t>(lengths_[index]); ++i) {
    if (acceptance_seen_[i] > 0) acceptance = acceptance_[i];  // else as at the position before
    survival *= acceptance;
    tokens += survival;
  }
  return tokens;
}

double LengthController::rate(size_t index) const { return expected_tokens(index) / seconds(index); }

DepthController::DepthController(const std::vector<int64_t>& depths)
    : count_(depths.size()), ewma_((kShallower + kDeeper) / 2) {
  while (first_ + 1 < count_ && depths[first_] < kDepthFloor) ++first_;
  index_ = first_ + (count_ - first_) / 2;
}

void DepthController::observe(size_t drafted, size_t accepted) {
  if (drafted == 0 || count_ == 0) return;
  ewma_ = (1 - kDepthStep) * ewma_ + kDepthStep * static_cast<double>(accepted) / static_cast<double>(drafted);
  if (++dwell_ < kDepthDwell) return;
  const size_t before = index_;
  if (ewma_ > kShallower && index_ > first_) --index_;
  if (ewma_ < kDeeper && index_ + 1 < count_) ++index_;
  if (index_ != before) dwell_ = 0;
}

}  // namespace specc
