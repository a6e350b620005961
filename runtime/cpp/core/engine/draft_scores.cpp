#include "draft_scores.h"

#include <algorithm>

namespace specc {

void DraftScores::reserve(const Round& round) {
  logits_.resize(std::max(logits_.size(), round.draft_logits_outputs.size() * round.draft_columns));
}

void DraftScores::take(const Frame& frame, const Round& round) {
  columns_ = round.draft_columns;
  float* row = logits_.data();
  for (const size_t output : round.draft_logits_outputs) {
    row = std::copy_n(frame.matrix(*round.propose, output).data, columns_, row);
  }
}

size_t DraftScores::trusted(const Frame& frame, const Round& round, double least) {
  const auto doubted = [&](size_t output) { return *frame.matrix(*round.propose, output).data < least; };
  const auto& outputs = round.confidence_outputs;
  const auto first = std::find_if(outputs.begin(), outputs.end(), doubted);
  return first == outputs.end() ? round.draft_length : static_cast<size_t>(first - outputs.begin());
}

DraftLogits DraftScores::logits() const {
  return {logits_.data(), columns_, columns_, nullptr, 0, DraftLaw::kTemperature};
}

}  // namespace specc
