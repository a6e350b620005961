#include "batch_lengths.h"

#include <algorithm>

namespace specc {
namespace {

constexpr uint64_t kPassTries = 2;  // passes without drafts, and with the shortest, before a longer one
constexpr double kBatchGain = 1.05;  // what drafts must promise more than the batch gives: estimates are noisy
constexpr uint64_t kFirstRetry = 32, kSoonRetry = 4, kLastRetry = 512;
constexpr double kLeastSeconds = 1e-9;  // seconds

}  // namespace

void BatchLengths::choose(std::vector<Text>& texts) {
  double tokens = 0, rows = 0, drafting = 0;
  const bool trying = passes_ < 2 * kPassTries;
  for (Text& text : texts) {
    text.index = !text.adapts ? text.most : trying && passes_ >= kPassTries ? std::min<size_t>(1, text.most) : 0;
    tokens += text.worth->expected_tokens(text.index);
    rows += static_cast<double>(lengths_[text.index] + 1);
    drafting += drafting_[text.index].seconds;
  }
  if (trying) return;
  double seconds = std::max(pass_.seconds(rows) + drafting, kLeastSeconds);
  for (Text& text : texts) text.next = best_step(text);
  const auto less = [](const Text& a, const Text& b) { return a.next.tokens_per_second < b.next.tokens_per_second; };
  while (true) {
    const auto best = std::max_element(texts.begin(), texts.end(), less);
    if (best == texts.end() || best->next.tokens_per_second <= kBatchGain * tokens / seconds) break;
    tokens += best->worth->expected_tokens(best->next.index) - best->worth->expected_tokens(best->index);
    seconds += cost(best->next.index) - cost(best->index);
    best->index = best->next.index;
    best->next = best_step(*best);
  }
  for (Text& text : texts) probe(text);
}

// The longer length that gives most for what it costs more than the one that the text has.
BatchLengths::Step BatchLengths::best_step(const Text& text) const {
  Step best;
  for (size_t index = text.index + 1; text.adapts && index <= text.most; ++index) {
    const double gain = text.worth->expected_tokens(index) - text.worth->expected_tokens(text.index);
    const double rate = gain / std::max(cost(index) - cost(text.index), kLeastSeconds);
    if (rate > best.tokens_per_second) best = {rate, index};
  }
  return best;
}

// A text that drafts nothing tries the shortest now and then, the rarer the less came of it.
void BatchLengths::probe(Text& text) {
  if (!text.adapts || text.most == 0) return;
  Probe& probe = *text.probe;
  if (probe.interval == 0) probe.interval = probe.wait = kFirstRetry;
  if (text.index > 0) {
    probe.wait = probe.interval;
  } else if (probe.wait > 0) {
    --probe.wait;
  } else {
    text.index = 1;
    probe.wait = probe.interval = std::min(2 * probe.interval, kLastRetry);
  }
}

void BatchLengths::observe_drafts(Probe& probe, bool kept) {
  if (kept) probe.interval = probe.wait = kSoonRetry;
}

void BatchLengths::observe_pass(size_t rows, double seconds) {
  ++passes_;
  pass_.observe(static_cast<double>(rows), seconds);
}

double BatchLengths::cost(size_t index) const {
  // (Drafting of a length that was not tried costs as much as that of the next shorter one that was.)
  size_t known = index;
  while (known > 0 && drafting_[known].rounds == 0) --known;
  return pass_.of_row() * static_cast<double>(lengths_[index]) + drafting_[known].seconds;
}

double BatchLengths::rate(const Text& text, size_t texts) const {
  const double share = pass_.seconds(static_cast<double>(texts)) / static_cast<double>(texts);
  return text.worth->expected_tokens(text.index) / std::max(share + cost(text.index), kLeastSeconds);
}

}  // namespace specc
