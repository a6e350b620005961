#include "batch_lengths.h"

#include <algorithm>

namespace specc {
namespace {

constexpr uint64_t kPassTries = 2;  // passes without drafts, and with the shortest, before a longer one
constexpr double kBatchGain = 1.05;  // what drafts must promise more than the batch gives: estimates are noisy
constexpr uint64_t kFirstRetry = 32, kSoonRetry = 4, kLastRetry = 512;
constexpr double kLossInRound = 0.01, kMostGained = 32, kMostLost = 4;  // tokens of an account
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
  const auto count = static_cast<double>(texts.size());
  token_s_ = std::max(pass_.known() ? pass_.seconds(count) / std::max(count, 1.0) : 1, kLeastSeconds);
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
  for (Text& text : texts) try_longer(text);
}

// The longer length that gives most for what it costs more than the one that the text has, of those that it can bear.
BatchLengths::Step BatchLengths::best_step(const Text& text) const {
  Step best;
  for (size_t index = text.index + 1; text.adapts && index <= text.most; ++index) {
    if (price(index) > text.account->saved) break;
    const double gain = text.worth->expected_tokens(index) - text.worth->expected_tokens(text.index);
    const double rate = gain / std::max(cost(index) - cost(text.index), kLeastSeconds);
    if (rate > best.tokens_per_second) best = {rate, index};
  }
  return best;
}

// Now and then a draft is one step longer than seems to pay, the rarer the less came of it: how much of it would be kept
// is known from trying alone.
void BatchLengths::try_longer(Text& text) const {
  DraftAccount& account = *text.account;
  account.trying = false;
  if (!text.adapts || text.index >= text.most) return;
  if (account.interval == 0) account.interval = account.wait = kFirstRetry;
  if (account.wait > 0) {
    --account.wait;
  } else if (price(text.index + 1) <= account.saved) {
    ++text.index;
    account.trying = true;
    account.wait = account.interval = std::min(2 * account.interval, kLastRetry);
  }
}

void BatchLengths::observe_drafts(DraftAccount& account, size_t index, size_t accepted) const {
  account.saved += static_cast<double>(accepted) + kLossInRound - (index == 0 ? 0 : price(index));
  account.saved = std::clamp(account.saved, -kMostLost, kMostGained);
  if (account.trying && accepted == static_cast<size_t>(lengths_[index])) account.interval = account.wait = kSoonRetry;
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
