#include "row_logits.h"

#include <algorithm>

#include "../error.h"

namespace specc {
namespace {

constexpr float kNever = -__builtin_inff();

}  // namespace

RowLogits::RowLogits(int64_t vocab_size)
    : vocab_size_(static_cast<size_t>(vocab_size)), row_(vocab_size_), draft_row_(vocab_size_) {}

void RowLogits::set(const SamplingParams& params) {
  params_ = params;
  if (!params.counts()) return;
  in_text_.resize(vocab_size_);
  in_output_.resize(vocab_size_);
  seen_.reserve(vocab_size_);
}

void RowLogits::begin(const History& history) {
  for (const int64_t token : seen_) in_text_[static_cast<size_t>(token)] = in_output_[static_cast<size_t>(token)] = 0;
  seen_.clear();
  output_ = history.count - history.prompt;
  if (!params_.counts()) return;
  for (size_t i = 0; i < history.count; ++i) {
    const auto token = static_cast<size_t>(history.tokens[i]);
    if (in_text_[token]++ == 0) seen_.push_back(history.tokens[i]);
    if (i >= history.prompt) ++in_output_[token];
  }
}

void RowLogits::push(int64_t token) {
  ++output_;
  if (!params_.counts()) return;
  const auto at = static_cast<size_t>(token);
  if (in_text_[at]++ == 0) seen_.push_back(token);
  ++in_output_[at];
}

bool RowLogits::applies(const uint32_t* allowed) const {
  return allowed != nullptr || params_.counts() || !params_.logit_bias.empty() || !params_.banned.empty() ||
         output_ < static_cast<size_t>(params_.min_tokens);
}

const float* RowLogits::process(const float* logits, const uint32_t* allowed) {
  if (!applies(allowed)) return logits;
  std::copy_n(logits, vocab_size_, row_.begin());
  apply(row_.data(), allowed);
  return row_.data();
}

const float* RowLogits::process(const DraftLogits& draft, size_t row, const uint32_t* allowed, bool all) {
  const float* logits = draft.logits + row * draft.stride;
  const bool processed = all && applies(allowed);
  if (draft.ids == nullptr && draft.columns >= vocab_size_ && !processed) return logits;
  std::fill(draft_row_.begin(), draft_row_.end(), kNever);
  const int64_t* ids = draft.ids == nullptr ? nullptr : draft.ids + row * draft.ids_stride;
  if (ids == nullptr) std::copy_n(logits, std::min(draft.columns, vocab_size_), draft_row_.begin());
  for (size_t column = 0; ids != nullptr && column < draft.columns; ++column) {
    if (ids[column] < 0 || static_cast<size_t>(ids[column]) >= vocab_size_) {
      throw Error(Code::Drafter, "a drafter's vocabulary has ids out of range")
          .expected("0 to " + std::to_string(vocab_size_ - 1))
          .found(std::to_string(ids[column]));
    }
    draft_row_[static_cast<size_t>(ids[column])] = logits[column];
  }
  if (processed) apply(draft_row_.data(), allowed);
  return draft_row_.data();
}

void RowLogits::apply(float* row, const uint32_t* allowed) const {
  for (size_t v = 0; allowed != nullptr && v < vocab_size_; v += 32) {
    const uint32_t word = allowed[v / 32];
    const size_t end = std::min<size_t>(32, vocab_size_ - v);
    for (size_t bit = 0; word != ~uint32_t{0} && bit < end; ++bit) {
      if ((word >> bit & 1) == 0) row[v + bit] = kNever;
    }
  }
  for (const int64_t token : params_.banned) row[token] = kNever;
  if (output_ < static_cast<size_t>(params_.min_tokens)) {
    for (const int64_t token : params_.eos) row[token] = kNever;
  }
  for (const auto& each : params_.logit_bias) row[each.token] += each.bias;
  if (!params_.counts()) return;
  const auto repetition = static_cast<float>(params_.repetition_penalty);
  const auto frequency = static_cast<float>(params_.frequency_penalty);
  const auto presence = static_cast<float>(params_.presence_penalty);
  for (const int64_t token : seen_) {
    float& logit = row[token];
    logit = logit > 0 ? logit / repetition : logit * repetition;
    const int32_t count = in_output_[static_cast<size_t>(token)];
    if (count > 0) {
      logit -= frequency * static_cast<float>(count);
      logit -= presence;
    }
  }
}

}  // namespace specc
