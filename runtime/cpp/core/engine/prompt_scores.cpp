#include "prompt_scores.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "../error.h"
#include "../sampling/logprobs.h"
#include "results.h"
#include "session.h"

namespace specc {

void PromptScores::begin(size_t tokens, size_t top) {
  top_ = top;
  logprobs_.clear();
  ranks_.clear();
  top_ids_.clear();
  top_logprobs_.clear();
  logprobs_.reserve(tokens);
  ranks_.reserve(tokens);
  top_ids_.reserve(tokens * top);
  top_logprobs_.reserve(tokens * top);
}

void PromptScores::add_first() {
  logprobs_.push_back(0);
  ranks_.push_back(0);
  top_ids_.resize(top_ids_.size() + top_, 0);
  top_logprobs_.resize(top_ids_.size(), 0);
}

void PromptScores::add(const float* logits, size_t vocab_size, int64_t token) {
  const double whole = log_sum(logits, vocab_size);
  if (std::isnan(whole)) {
    throw Error(Code::NotANumber, "the model computed a NaN")
        .where("the prompt's token " + std::to_string(logprobs_.size()))
        .cure("run specc verify, which finds damaged files; check the checkpoint, and the dtype it was compiled to");
  }
  const float own = logits[token];
  const auto better = [own](float other) { return other > own; };
  logprobs_.push_back(static_cast<float>(own - whole));
  ranks_.push_back(1 + std::count_if(logits, logits + vocab_size, better) + std::count(logits, logits + token, own));
  best_of(logits, vocab_size, top_, heap_);
  for (const auto& [logit, id] : heap_) {
    top_ids_.push_back(id);
    top_logprobs_.push_back(static_cast<float>(logit - whole));
  }
}

PromptScores::Score PromptScores::at(size_t index) const {
  if (index >= ranks_.size()) {
    throw Error(Code::SessionState, "there are no logprobs of this prompt token")
        .where("token " + std::to_string(index))
        .cure("set the option prompt_logprobs before the append, and ask for what that appended");
  }
  const bool first = ranks_[index] == 0;
  return {logprobs_[index], ranks_[index], first ? 0 : top_, top_ids_.data() + index * top_,
          top_logprobs_.data() + index * top_};
}

// Brings the state to where prefill would, through functions that tell their logits, and keeps those of the tokens from
// `first` on. False if cancelled.
bool Session::score_prompt(size_t first) {
  prompt_scores_.begin(committed_.size() - first, static_cast<size_t>(options_.prompt_logprobs));
  if (first == 0) prompt_scores_.add_first();
  for (size_t from = std::min(written_, first == 0 ? 0 : first - 1); from < root_position();) {
    if (take_cancel()) return false;
    from += score_block(from, first);
  }
  return true;
}

// The next rows from `from` on, in the shortest verification that has room for all, else in the longest. Returns how many.
size_t Session::score_block(size_t from, size_t first) {
  const Stopwatch watch;
  const size_t n = root_position(), left = n - from;
  const auto& lengths = artifact_->manifest().draft_lengths;
  size_t index = 0;
  while (index + 1 < lengths.size() && static_cast<size_t>(lengths[index]) + 1 < left) ++index;
  const Round& block = artifact_->rounds().round(artifact_->rounds().within(index, max_len_ - 1 - from), 0);
  const size_t rows = std::min(left, block.draft_length + 1);
  for (size_t row = 0; row <= block.draft_length; ++row) {
    inputs_.tokens[row] = committed_[std::min(from + row, n)];  // (beyond the text none that counts)
    inputs_.positions[row] = static_cast<int64_t>(from + row);
    inputs_.rows[row] = row_of(from + row);
    inputs_.parents[row] = static_cast<int64_t>(row) - 1;
  }
  const uint64_t call = place_.workspace().begin_taps();
  const Results results(frame_, artifact_->library());
  {
    const Turn turn(artifact_->library().turn());
    const Stopwatch running;
    frame_.execute(*block.verify, inputs_.views(*block.verify, 0));
    catch_up_s_ += running.seconds();
  }
  const Frame::Matrix logits = frame_.matrix(*block.verify, block.logits_output);
  const auto vocab_size = static_cast<size_t>(artifact_->manifest().model.vocab_size);
  for (size_t row = 0; row < rows; ++row) {
    const size_t told = from + row + 1;
    if (told >= first) prompt_scores_.add(logits.data + row * logits.stride, vocab_size, committed_[told]);
  }
  taps_ = {from, rows, 0, call};
  written_ = std::max(written_, from + rows);
  if (artifact_->manifest().drafter.state != DraftState::kOwn && from <= drafter_written_) {
    drafter_written_ = std::max(drafter_written_, from + rows);
  }
  stats_.prefill_tokens += rows;
  stats_.prefill_s += watch.seconds();
  return rows;
}

}  // namespace specc
