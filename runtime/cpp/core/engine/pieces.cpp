// A round in pieces: the drafts and logits of the round function, and tokens chosen by rules that no graph knows.

#include <algorithm>

#include "../error.h"
#include "results.h"
#include "session.h"

namespace specc {
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
  std::copy_n(drafts, round.draft_length, drafts_.begin());
  if (draws(round)) draft_scores_.take(frame_, round);
  return options_.confidence > 0 ? DraftScores::trusted(frame_, round, options_.confidence) : round.draft_length;
}

// Drafts, and asks what a grammar lets stand.
void Session::draft_pieces() {
  ready_sampler();
  const Round& round = *play_.round;
  const size_t rows = fill_round(round);
  play_.trusted = round.draft_length;
  if (round.propose != nullptr) {
    const Results results(frame_, artifact_->library());
    play_.seconds += play_.propose_seconds = run_piece(*round.propose, rows);
    play_.trusted = take_drafts(round);
  }
  const Stopwatch masking;
  play_.allowed = mask_ ? mask_.ask(committed_.data(), turn_start_, committed_.size(), drafts_.data(), play_.trusted)
                        : play_.trusted;
  play_.seconds += masking.seconds();
  const auto& lengths = artifact_->manifest().draft_lengths;
  const auto enough = [&](int64_t length) { return static_cast<size_t>(length) >= play_.allowed; };
  const auto length_index = static_cast<size_t>(std::find_if(lengths.begin(), lengths.end(), enough) - lengths.begin());
  play_.verified = &artifact_->rounds().round(length_index, 0);
}

// The root and `count` drafts, as a verification or a score takes them, from row `at` of the call on.
void Session::fill_block(size_t at, size_t count) {
  const size_t n = root_position();
  const bool tree = play_.verified->commit != nullptr;
  for (size_t row = 0; row <= count; ++row) {
    const size_t to = at + row;
    inputs_.tokens[to] = row == 0 ? committed_[n] : drafts_[row - 1];
    inputs_.rows[to] = row_of(n + row);
    inputs_.positions[to] = static_cast<int64_t>(n) + (tree ? depths_[row] : static_cast<int64_t>(row));
    inputs_.parents[to] = row == 0 || !tree ? -1 : parents_[row] + static_cast<int64_t>(at);
  }
}

// Runs the shortest verification of the drafts, and chooses. Rows beyond them hold drafts that do not count.
void Session::verify_alone() {
  const Round& verified = *play_.verified;
  fill_block(0, verified.draft_length);
  const Results results(frame_, artifact_->library());
  place_.workspace().begin_taps();
  const double seconds = run_piece(*verified.verify, 0);
  const Frame::Matrix logits = frame_.matrix(*verified.verify, verified.logits_output);
  choose(logits.data, logits.stride, seconds);
}

// The round's tokens. `seconds`: what this text's rows of the logits took.
void Session::choose(const float* logits, size_t stride, double seconds) {
  const Round& round = *play_.round;
  const Stopwatch choosing;
  RoundLogits scored;
  scored.logits = logits;
  scored.stride = stride;
  scored.drafts = drafts_.data();
  scored.draft_count = play_.allowed;
  if (play_.verified->commit != nullptr && branches()) scored.parents = draft_parents_.data();
  if (draws(round)) {
    // A draft that a grammar forbids is not cut, which would tell of it, but tried in vain: it has no probability.
    scored.draft = draft_scores_.logits();
    scored.draft_count = std::min(play_.allowed + 1, play_.trusted);
  }
  scored.allowed = mask_.bits();
  scored.allowed_words = mask_.words();
  sampled_ = sampler_->choose({committed_.data(), turn_start_, committed_.size()}, scored);
  std::copy_n(sampled_.tokens, sampled_.accepted + 1, round_tokens_.begin());
  play_.accepted = sampled_.accepted;
  play_.branched = scored.parents != nullptr;
  play_.seconds += seconds + choosing.seconds();
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
