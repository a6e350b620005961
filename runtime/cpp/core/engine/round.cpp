// Session's round: choose, draft, verify, commit.

#include <algorithm>

#include "../../model/noise.h"
#include "../error.h"
#include "session.h"

namespace specc {
namespace {

constexpr double kEwmaStep = 0.05;
constexpr uint64_t kGraphFirst = 4;  // rounds that are the graph's, so that there is something to compare with

// The largest of the ascending `lengths` that is at most `limit`; the first is 0.
size_t largest_within(const std::vector<int64_t>& lengths, size_t limit) {
  size_t index = lengths.size() - 1;
  while (static_cast<size_t>(lengths[index]) > limit) --index;
  return index;
}

}  // namespace

// False if cancelled.
bool Session::play_round() {
  const Commit full = commit_round(nullptr, 0, options_.rules, room_in_request(), room_in_context());
  if (full.finish != Finish::kNone) {
    finish_ = full.finish;
    membership_.leave();
    return true;
  }
  membership_.join(options_.draft_weight);
  make_room(committed_.size());  // what the append foresaw, unless max_tokens was raised since
  const Stopwatch watch;
  const double draft_before = stats_.draft_s;
  size_t length_index = choose_found();
  bool found = length_index > 0;
  if (!found) length_index = choose_length();
  const auto& lengths = artifact_->manifest().draft_lengths;
  if (on_host() || replaces()) {
    length_index = largest_within(lengths, propose(static_cast<size_t>(lengths[length_index])));
    found = replaces() && length_index > 0;
  }
  const size_t depth_index = options_.depth_index == kAdaptive ? depth_controller_.index() : options_.depth_index;
  const RoundTable& rounds = artifact_->rounds();
  const Round& round = found ? rounds.given(length_index) : rounds.round(length_index, depth_index);
  const double prefill_before = stats_.prefill_s;
  const uint64_t prefill_tokens_before = stats_.prefill_tokens;
  catch_up_s_ = 0;
  if (!ready_for(round)) return false;
  if (stats_.rounds > 0) {
    // No prompt, but what rounds without drafts left behind: a cost of drafting, which tokens per second must not hide.
    stats_.prefill_s = prefill_before;
    stats_.prefill_tokens = prefill_tokens_before;
  } else {
    catch_up_s_ = 0;
  }
  const Execution done = found || chooses() ? execute_pieces(round) : execute(round);
  look_at_guards(false);
  const size_t committed_before = committed_.size();
  commit(round, done.accepted);
  if (finish_ != Finish::kNone) look_at_guards(true);
  last_length_index_ = length_index;
  if (round.draft_length > 0 && !found) last_depth_index_ = depth_index;
  stats_.decode_s += watch.seconds() - (stats_.prefill_s - prefill_before);
  record(round, length_index, done, committed_.size() - committed_before, stats_.draft_s - draft_before);
  return true;
}

// The longest draft that the caller allows, as an index into the lengths.
size_t Session::most_drafts() const {
  const auto& lengths = artifact_->manifest().draft_lengths;
  const size_t index = options_.length_index == kAdaptive ? lengths.size() - 1 : options_.length_index;
  if (options_.length_policy.plain()) return index;
  const LengthPolicy::Facts facts{turn_start_, options_.draft_weight, artifact_->texts().others(), window_.drafts()};
  return largest_within(lengths, options_.length_policy.most(static_cast<size_t>(lengths[index]), facts));
}

// Before a round is committed, every so often; and at the end of a text. What nobody has seen yet is taken back.
void Session::look_at_guards(bool last) {
  if (options_.guard_rounds == 0 || !state_.guarded()) return;
  if (last ? unguarded_rounds_ == 0 : ++unguarded_rounds_ < options_.guard_rounds) return;
  unguarded_rounds_ = 0;
  ++stats_.guard_checks;
  try {
    state_.check_guards();
  } catch (...) {
    unguarded_rounds_ = options_.guard_rounds;  // until they are whole, which they will not be
    drop_unread();
    throw;
  }
}

size_t Session::choose_length() {
  const size_t most = most_drafts();
  const size_t index = adapts() ? std::min(controller().choose(), most) : most;
  const DrafterSpec& drafter = artifact_->manifest().drafter;
  if (root_position() < static_cast<size_t>(drafter.min_length)) return 0;
  if (root_position() + static_cast<size_t>(drafter.draft_rows) > max_len_) return 0;
  return within_room(index);
}

// The longest draft up to this one that makes sense.
size_t Session::within_room(size_t index) const {
  const auto& lengths = artifact_->manifest().draft_lengths;
  // Drafts beyond the request's cap would be thrown away: take the shortest length that still reaches it.
  const size_t wanted = room_in_request() - 1;
  while (index > 0 && static_cast<size_t>(lengths[index - 1]) >= wanted) --index;
  // Verification writes state for the root and all drafts, and that must exist.
  return artifact_->rounds().within(index, max_len_ - 1 - root_position());
}

// The length of what a drafter on the host found, where it stands beside one in the graph and promises more; or 0.
size_t Session::choose_found() {
  if (!finds() || options_.length_index == 0 || controller().rounds() < kGraphFirst) return 0;
  const auto& lengths = artifact_->manifest().draft_lengths;
  const size_t allowed = most_drafts(), most = within_room(allowed);
  const size_t longest = largest_within(lengths, propose(static_cast<size_t>(lengths[most])));
  const size_t instead = adapts() ? std::min(controller().current(), allowed) : allowed;
  return found_drafts_.choose(longest, controller().rate(instead));
}

// Brings the state to where the round expects it; there is something to do only after a rewind, a cancelled prefill or
// rounds without drafts. False if cancelled.
bool Session::ready_for(const Round& round) {
  const size_t n = root_position();
  if (!catch_up(std::min(written_, n))) return false;
  // The round itself extends the drafter over what a round like it committed; more would be held against this length.
  if (extends()) return !round.extends || extend(std::min(inputs_.chunk(), round.draft_length + 1));
  // A round feeds the drafter the last `lag` tokens before the root again, so its own state may end that far behind.
  // Rounds without drafts leave it further behind.
  const auto lag = static_cast<size_t>(artifact_->manifest().drafter.lag);
  if (round.draft_length > 0 && !round.given && drafter_written_ + lag < n && !catch_up(drafter_written_)) return false;
  if (round.reads_taps && n > 0 && !taps_.covers(n - 1)) return catch_up(n - 1);
  return true;
}

// What the round is told; returns the rows of its extension.
size_t Session::fill_round(const Round& round) {
  const size_t n = root_position();
  inputs_.root = committed_[n];
  inputs_.previous = committed_[n == 0 ? 0 : n - 1];
  inputs_.length = static_cast<int64_t>(n);
  inputs_.tap_row = n > 0 && taps_.covers(n - 1) ? static_cast<int64_t>(n - 1 - taps_.start) : 0;
  inputs_.seed = options_.sampling.seed;
  inputs_.temperature = options_.sampling.temperature;
  if (options_.sampling.rule != AcceptanceRule::kMatch) {
    // Drafts that are kept by p/q are drawn by a noise of their own, or without any, so that q is 1.
    inputs_.seed = static_cast<int64_t>(round_seed(static_cast<uint64_t>(inputs_.seed), Purpose::kDraft, n));
    if (!draws(round)) inputs_.temperature = 0;
  }
  taps_.rows = 0;  // overwritten by what follows, should it fail
  if (!round.extends) return 0;
  // The last row is always among them: drafts go on from it.
  const size_t from = std::min(drafter_written_, n - 1);
  fill_extension(from, n - from);
  return n - from;
}

// Of a round, in the library's turn.
void Session::run_plan(const Plan& plan, size_t rows) {
  const Frame::Counts before = frame_.counts();
  const uint32_t met = artifact_->library().thread_syncs();
  frame_.execute(plan, inputs_.views(plan, rows));
  stats_.launches += frame_.counts().launches - before.launches;
  stats_.host_syncs += frame_.counts().host_syncs - before.host_syncs;
  stats_.thread_syncs += artifact_->library().thread_syncs() - met;
}

// Runs the round into round_tokens_. Commits nothing.
Session::Execution Session::execute(const Round& round) {
  const size_t n = root_position();
  const size_t rows = fill_round(round);
  const Turn turn(artifact_->library().turn());
  const Stopwatch watch;  // waiting for other sessions is no cost of the round
  const FrameGuard guard(frame_);
  run_plan(*round.plan, rows);
  const double seconds = watch.seconds();
  const int64_t accepted = *frame_.integers(*round.plan, round.accepted_output, 1);
  if (accepted == -1) {
    throw Error(Code::NotANumber, "the model computed a NaN")
        .where("position " + std::to_string(n))
        .cure("run specc verify, which finds damaged files; check the checkpoint, and the dtype it was compiled to");
  }
  const int64_t* tokens = frame_.integers(*round.plan, round.tokens_output, round.draft_length + 1);
  const int64_t vocab_size = artifact_->manifest().model.vocab_size;
  const auto bad = [&](int64_t id) { return id < 0 || id >= vocab_size; };
  if (accepted < 0 || static_cast<size_t>(accepted) > round.draft_length ||
      std::any_of(tokens, tokens + accepted + 1, bad)) {
    throw Error(Code::Compute, "a round returned tokens out of range").where(round.plan->name);
  }
  std::copy_n(tokens, accepted + 1, round_tokens_.begin());
  sampled_ = {};
  return {static_cast<size_t>(accepted), round.draft_length, round.draft_length, seconds};
}

void Session::commit(const Round& round, size_t accepted) {
  const size_t n = root_position();
  const Commit result =
      commit_round(round_tokens_.data(), accepted + 1, options_.rules, room_in_request(), room_in_context());
  committed_.insert(committed_.end(), round_tokens_.begin(),
                    round_tokens_.begin() + static_cast<ptrdiff_t>(result.kept));
  unread_ = round_kept_ = result.kept;
  finish_ = result.finish;
  if (finish_ != Finish::kNone) membership_.leave();

  // Row r holds position n + r; it is right if its token, the root or an accepted draft, is part of the text.
  const size_t rows = std::min(accepted, result.kept) + 1;
  if (artifact_->manifest().drafter.state != DraftState::kOwn) {
    drafter_written_ = n + rows;
  } else if (round.extends) {
    drafter_written_ = n;  // beyond it the drafter fed on its own features
  } else if (round.draft_length > 0 && !round.given) {
    drafter_written_ = n + std::min(rows, round.draft_length);  // the last draft was proposed, but not fed
  }
  written_ = n + rows;
  taps_ = {n, rows};
}

void Session::record(const Round& round, size_t length_index, const Execution& done, size_t kept,
                     double draft_seconds) {
  const size_t accepted = done.accepted;
  ++stats_.rounds;
  stats_.new_tokens += kept;
  stats_.round_s += done.seconds;
  LengthStats& length = stats_.lengths[length_index];
  ++length.rounds;
  length.tokens += kept;
  length.seconds += done.seconds;
  // Looking for drafts in vain says nothing of what a round without them costs.
  const double cost = done.seconds + (round.draft_length > 0 ? draft_seconds : 0);
  stats_.found_drafts += round.given;
  if (round.given && !replaces()) {
    found_drafts_.observe(length_index, accepted, cost);
  } else {
    controller().observe(length_index, accepted, cost, catch_up_s_);
  }
  if (round.draft_length > 0 || most_drafts() == 0) {
    window_.observe(round.draft_length, accepted, static_cast<size_t>(artifact_->manifest().draft_lengths.back()));
  }
  if (round.draft_length == 0) return;
  const size_t longest = longest_path(round);
  ++stats_.drafts;
  stats_.draft_tokens += round.draft_length;
  stats_.accepted_tokens += accepted;
  for (size_t i = 0; i < longest && i <= accepted; ++i) {
    ++stats_.positions[i].drafted;
    stats_.positions[i].accepted += i < accepted;
  }
  if (kept < accepted) {
    ++(finish_ == Finish::kStop ? stats_.cut.stop : stats_.cut.length);
  } else if (accepted < longest) {
    ++(accepted < done.allowed       ? stats_.cut.mismatch
       : done.allowed < done.trusted ? stats_.cut.grammar
                                     : stats_.cut.confidence);
  }
  const double ratio = static_cast<double>(accepted) / static_cast<double>(longest);
  const double before = acceptance_ewma_.value_or(ratio);
  acceptance_ewma_ = before + kEwmaStep * (ratio - before);
  if (!round.given) depth_controller_.observe(round.draft_length, accepted);
}

}  // namespace specc
