// A round in pieces: the drafts and logits of the round function, and tokens chosen by rules that no graph knows.

#include <algorithm>

#include "../error.h"
#include "session.h"

namespace specc {
namespace {

// The results of the last plan, which may be read without the library's turn. Letting go of them takes one.
class Results {
 public:
  Results(Frame& frame, ModelLibrary& library) : frame_(frame), library_(library) {}
  ~Results() {
    const Turn turn(library_.turn());
    frame_.clear();
  }
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;

 private:
  Frame& frame_;
  ModelLibrary& library_;
};

}  // namespace

void Session::set_mask(specc_mask_fn mask, void* user) {
  if (mask != nullptr) require_pieces(artifact_->manifest(), "mask");
  mask_.set(mask, user, static_cast<size_t>(artifact_->manifest().model.vocab_size), round_tokens_.size());
  sampler_ready_ = false;
}

void Session::ready_sampler() {
  if (sampler_ready_) return;
  const int64_t vocab_size = artifact_->manifest().model.vocab_size;
  if (sampler_ == nullptr) sampler_ = std::make_unique<Sampler>(vocab_size, round_tokens_.size());
  SamplingParams params = options_.sampling;
  params.eos = options_.rules.eos;
  params.eos.insert(params.eos.end(), options_.rules.stop.begin(), options_.rules.stop.end());
  // (A stop token that is no word of the model stops nothing.)
  const auto foreign = [&](int64_t id) { return id < 0 || id >= vocab_size; };
  params.eos.erase(std::remove_if(params.eos.begin(), params.eos.end(), foreign), params.eos.end());
  sampler_->set(params);
  for (const auto& by_depth : artifact_->rounds().rounds()) {
    for (const Round& round : by_depth) {
      if (draws(round)) draft_scores_.reserve(round);
    }
  }
  sampler_ready_ = true;
}

// Whether drafts are drawn from a law that acceptance is told.
bool Session::draws(const Round& round) const {
  return options_.sampling.rule != AcceptanceRule::kMatch && options_.sampling.temperature > 0 &&
         !round.draft_logits_outputs.empty();
}

double Session::run_piece(const Plan& plan, size_t rows) {
  const Turn turn(artifact_->library().turn());
  const Stopwatch watch;
  run_plan(plan, rows);
  return watch.seconds();
}

// Copies what was proposed. Returns how many leading drafts are worth verifying.
size_t Session::take_drafts(const Round& round) {
  const int64_t* drafts = frame_.integers(*round.propose, round.drafts_output, round.draft_length);
  const int64_t vocab_size = artifact_->manifest().model.vocab_size;
  if (std::any_of(drafts, drafts + round.draft_length, [&](int64_t id) { return id < 0 || id >= vocab_size; })) {
    throw Error(Code::Compute, "a drafter proposed tokens out of range").where(round.propose->name);
  }
  std::copy_n(drafts, round.draft_length, inputs_.drafts.begin());
  if (draws(round)) draft_scores_.take(frame_, round);
  return options_.confidence > 0 ? DraftScores::trusted(frame_, round, options_.confidence) : round.draft_length;
}

// Prepares the shortest verification of so many drafts. Rows beyond them hold drafts that do not count.
const Round& Session::fill_verify(size_t drafts) {
  const auto& lengths = artifact_->manifest().draft_lengths;
  const auto enough = [&](int64_t length) { return static_cast<size_t>(length) >= drafts; };
  const auto length_index = static_cast<size_t>(std::find_if(lengths.begin(), lengths.end(), enough) - lengths.begin());
  const Round& verified = artifact_->rounds().round(length_index, 0);
  const size_t n = root_position();
  for (size_t row = 0; row <= verified.draft_length; ++row) {
    inputs_.tokens[row] = row == 0 ? committed_[n] : inputs_.drafts[row - 1];
    inputs_.rows[row] = static_cast<int64_t>(n + row);
    inputs_.positions[row] = verified.commit == nullptr ? inputs_.rows[row] : static_cast<int64_t>(n) + inputs_.depths[row];
  }
  return verified;
}

Session::Execution Session::execute_pieces(const Round& round) {
  ready_sampler();
  const size_t rows = fill_round(round);
  const Results results(frame_, artifact_->library());
  double seconds = 0;
  size_t trusted = round.draft_length;
  if (round.propose != nullptr) {
    seconds += run_piece(*round.propose, rows);
    trusted = take_drafts(round);
  }
  const Stopwatch masking;
  const int64_t* drafts = inputs_.drafts.data();
  const size_t allowed = mask_ ? mask_.ask(committed_.data(), turn_start_, committed_.size(), drafts, trusted)
                               : trusted;
  seconds += masking.seconds();

  const Round& verified = fill_verify(allowed);
  seconds += run_piece(*verified.verify, 0);
  const Stopwatch choosing;
  const Frame::Matrix logits = frame_.matrix(*verified.verify, verified.logits_output);
  RoundLogits scored;
  scored.logits = logits.data;
  scored.stride = logits.stride;
  scored.drafts = drafts;
  scored.draft_count = allowed;
  if (verified.commit != nullptr && branches()) scored.parents = draft_parents_.data();
  if (draws(round)) {
    // A draft that a grammar forbids is not cut, which would tell of it, but tried in vain: it has no probability.
    scored.draft = draft_scores_.logits();
    scored.draft_count = std::min(allowed + 1, trusted);
  }
  scored.allowed = mask_.bits();
  scored.allowed_words = mask_.words();
  sampled_ = sampler_->choose({committed_.data(), turn_start_, committed_.size()}, scored);
  std::copy_n(sampled_.tokens, sampled_.accepted + 1, round_tokens_.begin());
  if (scored.parents != nullptr) seconds += commit_path(verified);
  return {sampled_.accepted, trusted, allowed, seconds + choosing.seconds()};
}

Session::Logprobs Session::logprobs() const {
  if (sampled_.logprobs == nullptr || unread_ >= round_kept_) {
    throw Error(Code::SessionState, "there are no logprobs").cure("set the option logprobs, and ask after next");
  }
  const size_t place = round_kept_ - unread_ - 1;
  const auto count = static_cast<size_t>(sampler_->params().logprobs);
  return {sampled_.logprobs[place], count, sampled_.top_ids + place * count, sampled_.top_logprobs + place * count};
}

}  // namespace specc
