#include "session.h"

#include <algorithm>
#include <utility>

#include "../error.h"

namespace specc {
namespace {

// No more than this is set aside for tokens when a session is opened, whatever the artifact claims to hold.
constexpr size_t kMaxReserve = size_t{1} << 20;

// What rounds write beyond the end of a text.
size_t rows_beyond(const Manifest& manifest) {
  size_t rows = static_cast<size_t>(manifest.drafter.draft_rows);
  for (const RoundSpec& round : manifest.rounds) rows = std::max(rows, static_cast<size_t>(round.nodes) + 1);
  return rows;
}

}  // namespace

Session::Session(std::shared_ptr<Artifact> artifact)
    : Session(std::make_shared<Workspace>(std::move(artifact), 1)) {}

Session::Session(std::shared_ptr<Workspace> workspace)
    : artifact_(workspace->artifact()),
      max_len_(static_cast<size_t>(artifact_->manifest().model.max_model_len)),
      rows_beyond_(rows_beyond(artifact_->manifest())),
      place_(workspace),
      first_row_(place_.first_row()),
      state_(workspace->state()),
      inputs_(workspace->inputs()),
      frame_(workspace->frame()),
      stats_(artifact_->manifest().longest_draft(), artifact_->manifest().draft_lengths.size()),
      length_controller_(artifact_->manifest().draft_lengths, &artifact_->round_costs()),
      piece_controller_(artifact_->manifest().draft_lengths, &artifact_->round_costs(true)),
      host_controller_(artifact_->manifest().draft_lengths, &artifact_->given_costs()),
      depth_controller_(artifact_->manifest().drafter.depths),
      found_drafts_(artifact_->manifest().draft_lengths.size()),
      membership_(artifact_->texts()),
      drafter_(make_host_drafter(artifact_->manifest().drafter)),
      drafts_(std::max<size_t>(1, artifact_->manifest().longest_draft())),
      parents_(drafts_.size() + 1, -1),
      depths_(parents_.size()),
      draft_parents_(drafts_.size()),
      round_tokens_(artifact_->manifest().longest_draft() + 1),
      last_depth_index_(depth_controller_.index()) {
  options_.rules.eos = artifact_->manifest().model.eos_token_ids;
  committed_.reserve(std::min(max_len_, kMaxReserve));
}

void Session::set_drafter(specc_drafter_fn drafter, void* user) {
  if (drafter != nullptr && !on_host() && !artifact_->manifest().in_pieces()) {
    throw Error(Code::Option, "this artifact drafts inside its rounds and takes no drafter of the caller")
        .expected("an artifact whose drafter runs on the host, or whose rounds come in pieces")
        .found("drafter '" + artifact_->manifest().drafter.kind + "'")
        .cure("compile with --method ngram, or again with this version of specc and without --tree");
  }
  callback_ = drafter;
  callback_user_ = user;
}

int64_t Session::last_depth() const {
  const auto& depths = artifact_->manifest().drafter.depths;
  return depths.empty() ? 0 : depths[last_depth_index_];
}

size_t Session::room_in_request() const {
  const size_t generated = committed_.size() - turn_start_;
  return options_.max_tokens - std::min(options_.max_tokens, generated);
}

void Session::check_prompt(const int64_t* ids, size_t count) const {
  if (ids == nullptr && count > 0) throw Error(Code::Option, "no tokens given").where("ids");
  if (visible() + count == 0) {
    throw Error(Code::SessionState, "the prompt is empty")
        .expected("at least one token")
        .cure("begin with the model's BOS token or a newline");
  }
  if (count > max_len_ || visible() + count > max_len_) {
    throw Error(Code::Context, "the prompt does not fit into the context")
        .expected("at most " + std::to_string(max_len_) + " tokens in all")
        .found(std::to_string(visible()) + " + " + std::to_string(count))
        .cure("shorten the prompt, or compile with a larger --max-model-len");
  }
  const int64_t vocab_size = artifact_->manifest().model.vocab_size;
  for (size_t i = 0; i < count; ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    throw Error(Code::TokenId, "a token id is out of range")
        .where("token " + std::to_string(i))
        .expected("0 to " + std::to_string(vocab_size - 1))
        .found(std::to_string(ids[i]))
        .cure("use the tokenizer of this model");
  }
}

// Two rules for one thing: neither is ignored.
void Session::check_lengths() const {
  if (options_.length_index == kAdaptive || options_.length_policy.adapts()) return;
  throw Error(Code::Option, "num_speculative_tokens and this length_policy both say how much is drafted")
      .where("length_policy")
      .cure("leave one of them out");
}

// State for a text of so many tokens, and what rounds write beyond its end.
void Session::make_room(size_t tokens) {
  const size_t rows = std::min(max_len_, tokens + rows_beyond_);
  if (rows > static_cast<size_t>(state_.plan().rows)) state_.make_room(rows, committed_.size());
}

bool Session::append(const int64_t* ids, size_t count) {
  check_prompt(ids, count);
  check_lengths();
  const size_t before = visible();
  drop_unread();
  prompt_scores_.clear();
  if (place_.workspace().batched() || chooses() || finds() || replaces()) ready_sampler();  // what it allocates is not for a round to do
  const Finish finish_before = finish_;
  const auto undo = [&] {
    keep(before);
    finish_ = finish_before;
  };
  stats_.reset();
  sampled_ = {};
  try {
    committed_.insert(committed_.end(), ids, ids + count);
    const size_t room = max_len_ - committed_.size();
    const size_t longest = committed_.size() + std::min(options_.max_tokens, room);
    committed_.reserve(std::min(longest, std::max(kMaxReserve, committed_.size())));
    if (drafter_ != nullptr) drafter_->reserve(longest);
    make_room(longest);
    if (options_.prompt_logprobs >= 0 && !score_prompt(before)) {
      undo();
      return false;
    }
    // What of the drafter's state is lacking after that, too.
    if (!catch_up(extends() ? written_ : std::min(written_, drafter_written_))) {
      undo();
      return false;
    }
  } catch (...) {
    undo();
    throw;
  }
  finish_ = Finish::kNone;
  turn_start_ = committed_.size();
  window_.reset();
  membership_.join(options_.draft_weight);
  return true;
}

void Session::rewind(size_t count) {
  if (count > visible()) {
    throw Error(Code::Option, "cannot keep more tokens than there are")
        .where("count")
        .expected("at most " + std::to_string(visible()))
        .found(std::to_string(count));
  }
  keep(count);
}

// Takes back everything after the first `count` tokens. What the state holds for the rest stays right.
void Session::keep(size_t count) {
  committed_.resize(count);
  membership_.leave();
  unread_ = 0;
  failure_ = nullptr;
  sampled_ = {};
  prompt_scores_.clear();
  finish_ = Finish::kNone;
  turn_start_ = std::min(turn_start_, count);
  written_ = std::min(written_, count);
  drafter_written_ = std::min(drafter_written_, extends() && count > 0 ? count - 1 : count);
  taps_.rows = count <= taps_.start ? 0 : std::min(taps_.rows, count - taps_.start);
  if (drafter_ != nullptr) drafter_->truncate(count);
}

// Tokens that nobody has seen will be computed again if they are wanted, and so will the reason they ended for.
void Session::drop_unread() {
  if (unread_ > 0) keep(visible());
}

// Runs prefill over x[from..n-1]. False if cancelled; what is done by then stays done.
bool Session::catch_up(size_t from) {
  const size_t chunk = inputs_.chunk();
  for (size_t to = root_position(); from < to;) {
    if (take_cancel()) return false;
    const size_t rows = std::min(chunk, to - from);
    prefill_chunk(from, rows);
    from += rows;
  }
  return true;
}

void Session::prefill_chunk(size_t from, size_t rows) {
  const Stopwatch watch;
  const Plan& plan = artifact_->rounds().prefill();
  for (size_t row = 0; row < rows; ++row) {
    inputs_.tokens[row] = committed_[from + row];
    inputs_.positions[row] = static_cast<int64_t>(from + row);
    inputs_.rows[row] = row_of(from + row);
  }
  const uint64_t call = place_.workspace().begin_taps();
  run_rows(plan, rows);
  taps_ = {from, rows, 0, call};
  // Rows that do not join on to what is right leave a gap before them, and count for nothing.
  if (from <= written_) written_ = std::max(written_, from + rows);
  if (from <= drafter_written_ && !extends()) drafter_written_ = std::max(drafter_written_, from + rows);
  stats_.prefill_tokens += rows;
  stats_.prefill_s += watch.seconds();
}

// Whether what a call left of this position is there still.
bool Session::taps_cover(size_t position) const {
  return taps_.call == place_.workspace().taps() && position >= taps_.start && position - taps_.start < taps_.rows;
}

void Session::run_rows(const Plan& plan, size_t rows) {
  const Turn turn(artifact_->library().turn());
  const Stopwatch watch;
  const FrameGuard guard(frame_);
  frame_.execute(plan, inputs_.views(plan, rows));
  catch_up_s_ += watch.seconds();
}

// What an extension is given: positions from `from`, and the committed token after each.
void Session::fill_extension(size_t from, size_t rows) {
  for (size_t row = 0; row < rows; ++row) {
    inputs_.tokens[row] = committed_[from + row + 1];
    inputs_.positions[row] = static_cast<int64_t>(from + row);
    inputs_.rows[row] = row_of(from + row);
  }
}

// Extends the drafter's state over the committed tokens, chunk by chunk, until at most `most_left` positions before the
// root are left. False if cancelled.
bool Session::extend(size_t most_left) {
  const Plan& plan = *artifact_->rounds().extend();
  const size_t chunk = inputs_.chunk();
  while (drafter_written_ + most_left < root_position()) {
    if (take_cancel()) return false;
    const Stopwatch watch;
    const size_t rows = std::min(chunk, root_position() - drafter_written_);
    fill_extension(drafter_written_, rows);
    run_rows(plan, rows);
    drafter_written_ += rows;
    stats_.prefill_s += watch.seconds();
  }
  return true;
}

void Session::require_text() const {
  if (committed_.empty()) {
    throw Error(Code::SessionState, "the session is empty").cure("append a prompt first");
  }
}

Step Session::next(int64_t* token) {
  require_text();
  if (take_cancel()) return Step::kCancelled;
  while (unread_ == 0) {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    if (finish_ != Finish::kNone) return Step::kDone;
    if (!play_round()) return Step::kCancelled;
  }
  *token = committed_[committed_.size() - unread_];
  --unread_;
  return Step::kToken;
}

}  // namespace specc
