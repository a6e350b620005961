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
  if (!open_round()) return true;
  size_t length_index = choose_found();
  const bool found = length_index > 0;
  if (!found) length_index = choose_length();
  if (!begin_round(length_index, found)) return false;
  if (play_.round->given || chooses()) {
    draft_pieces();
    verify_alone();
  } else {
    execute(*play_.round);
  }
  end_round(0);
  return true;
}

bool Session::may_play() const {
  require_text();
  return unread_ == 0 && !failure_ && !cancelled_.load(std::memory_order_acquire);
}

bool Session::open_round() {
  const Commit full = commit_round(nullptr, 0, options_.rules, room_in_request(), room_in_context());
  if (full.finish != Finish::kNone) {
    finish_ = full.finish;
    membership_.leave();
    return false;
  }
  membership_.join(options_.draft_weight);
  make_room(committed_.size());  // what the append foresaw, unless max_tokens was raised since
  play_ = {};
  play_.draft_before = stats_.draft_s;
  play_.prefill_before = stats_.prefill_s;
  play_.prefill_tokens_before = stats_.prefill_tokens;
  return true;
}

// Drafts on the host, and brings the state to where the round begins. False if cancelled.
bool Session::begin_round(size_t length_index, bool found) {
  const auto& lengths = artifact_->manifest().draft_lengths;
  if (!found && (on_host() || replaces())) {
    length_index = largest_within(lengths, propose(static_cast<size_t>(lengths[length_index])));
    found = replaces() && length_index > 0;
  }
  play_.length_index = length_index;
  play_.depth_index = options_.depth_index == kAdaptive ? depth_controller_.index() : options_.depth_index;
  const RoundTable& rounds = artifact_->rounds();
  play_.round = &(found ? rounds.given(length_index) : rounds.round(length_index, play_.depth_index));
  catch_up_s_ = 0;
  if (!ready_for(*play_.round)) return false;
  if (stats_.rounds > 0) {
    // No prompt, but what rounds without drafts left behind: a cost of drafting, which tokens per second must not hide.
    stats_.prefill_s = play_.prefill_before;
    stats_.prefill_tokens = play_.prefill_tokens_before;
  } else {
    catch_up_s_ = 0;
  }
  return true;
}

// Commits what was chosen. `taps_offset`: the call's row of the root.
void Session::end_round(size_t taps_offset) {
  if (play_.branched) play_.seconds += commit_path(*play_.verified);
  look_at_guards(false);
  const size_t committed_before = committed_.size();
  commit(taps_offset);
  if (finish_ != Finish::kNone) look_at_guards(true);
  last_length_index_ = play_.length_index;
  if (play_.round->draft_length > 0 && !play_.round->given) last_depth_index_ = play_.depth_index;
  stats_.decode_s += play_.watch.seconds() - (stats_.prefill_s - play_.prefill_before);
  record(committed_.size() - committed_before);
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
  const size_t chosen = adapts() ? controller().choose() : ~size_t{0};
  return std::min(chosen, longest());
}

size_t Session::longest() const {
  const DrafterSpec& drafter = artifact_->manifest().drafter;
  if (root_position() < static_cast<size_t>(drafter.min_length)) return 0;
  if (root_position() + static_cast<size_t>(drafter.draft_rows) > max_len_) return 0;
  return within_room(most_drafts());
}

bool Session::adapts() const { return options_.length_index == kAdaptive && options_.length_policy.adapts(); }

LengthController& Session::controller() {
  if (replaces() || (on_host() && callback_ != nullptr)) return host_controller_;
  return chooses() ? piece_controller_ : length_controller_;
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

size_t Session::choose_found() {
  if (!finds() || options_.length_index == 0 || controller().rounds() < kGraphFirst) return 0;
  const size_t allowed = most_drafts();
  return find(controller().rate(adapts() ? std::min(controller().current(), allowed) : allowed));
}

// The length of what a drafter on the host found, where it stands beside one in the graph that gives `rate` tokens per
// second, and promises more; or 0.
size_t Session::find(double rate) {
  const auto& lengths = artifact_->manifest().draft_lengths;
  const size_t most = within_room(most_drafts());
  return found_drafts_.choose(largest_within(lengths, propose(static_cast<size_t>(lengths[most]))), rate);
}

bool Session::draft(size_t length_index, double rate) {
  play_.in_batch = true;
  const bool finding = finds() && options_.length_index != 0 && stats_.rounds >= kGraphFirst;
  const size_t found = finding ? find(rate) : 0;
  if (!begin_round(found > 0 ? found : length_index, found > 0)) return false;
  draft_pieces();
  return true;
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
  if (round.reads_taps && n > 0 && !taps_cover(n - 1)) return catch_up(n - 1);
  return true;
}

// What the round is told; returns the rows of its extension.
size_t Session::fill_round(const Round& round) {
  const size_t n = root_position();
  inputs_.root = committed_[n];
  inputs_.previous = committed_[n == 0 ? 0 : n - 1];
  inputs_.length = static_cast<int64_t>(n);
  inputs_.first_row = first_row_;
  inputs_.tap_row = n > 0 && taps_cover(n - 1) ? static_cast<int64_t>(n - 1 - taps_.start + taps_.offset) : 0;
  inputs_.seed = options_.sampling.seed;
  inputs_.temperature = options_.sampling.temperature;
  if (options_.sampling.rule != AcceptanceRule::kMatch) {
    // Drafts that are kept by p/q are drawn by a noise of their own, or without any, so that q is 1.
    inputs_.seed = static_cast<int64_t>(round_seed(static_cast<uint64_t>(inputs_.seed), Purpose::kDraft, n));
    if (!draws(round)) inputs_.temperature = 0;
  }
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
  count_calls({frame_.counts().launches - before.launches, frame_.counts().host_syncs - before.host_syncs},
              artifact_->library().thread_syncs() - met);
}

void Session::count_calls(const Frame::Counts& calls, uint32_t thread_syncs) {
  stats_.launches += calls.launches;
  stats_.host_syncs += calls.host_syncs;
  stats_.thread_syncs += thread_syncs;
}

// Runs the round into round_tokens_. Commits nothing.
void Session::execute(const Round& round) {
  const size_t n = root_position();
  const size_t rows = fill_round(round);
  std::copy_n(drafts_.begin(), round.draft_length, inputs_.drafts.begin());
  std::copy_n(parents_.begin(), round.draft_length + 1, inputs_.parents.begin());
  std::copy_n(depths_.begin(), round.draft_length + 1, inputs_.depths.begin());
  place_.workspace().begin_taps();
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
  play_.trusted = play_.allowed = round.draft_length;
  play_.accepted = static_cast<size_t>(accepted);
  play_.seconds = seconds;
}

void Session::commit(size_t taps_offset) {
  const Round& round = *play_.round;
  const size_t n = root_position(), accepted = play_.accepted;
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
  taps_ = {n, rows, taps_offset, place_.workspace().taps()};
}

void Session::record(size_t kept) {
  const Round& round = *play_.round;
  const size_t accepted = play_.accepted, length_index = play_.length_index;
  ++stats_.rounds;
  stats_.new_tokens += kept;
  stats_.round_s += play_.seconds;
  LengthStats& length = stats_.lengths[length_index];
  ++length.rounds;
  length.tokens += kept;
  length.seconds += play_.seconds;
  // Looking for drafts in vain says nothing of what a round without them costs.
  const double cost = play_.seconds + (round.draft_length > 0 ? stats_.draft_s - play_.draft_before : 0);
  stats_.found_drafts += round.given;
  if (round.given && !replaces()) {
    found_drafts_.observe(length_index, accepted, cost);
  } else if (play_.in_batch) {
    controller().observe_acceptance(length_index, accepted);
  } else {
    controller().observe(length_index, accepted, cost, catch_up_s_);
  }
  if (round.draft_length > 0 || most_drafts() == 0) {
    window_.observe(round.draft_length, accepted, artifact_->manifest().longest_draft());
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
    ++(accepted < play_.allowed        ? stats_.cut.mismatch
       : play_.allowed < play_.trusted ? stats_.cut.grammar
                                       : stats_.cut.confidence);
  }
  const double ratio = static_cast<double>(accepted) / static_cast<double>(longest);
  const double before = acceptance_ewma_.value_or(ratio);
  acceptance_ewma_ = before + kEwmaStep * (ratio - before);
  if (!round.given) depth_controller_.observe(round.draft_length, accepted);
}

}  // namespace specc
