// One text in the making: committed tokens, the model's state for them, and the loop that adds to both.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "../artifact.h"
#include "../drafters/host_drafter.h"
#include "../sampling/sampler.h"
#include "specc.h"
#include "batch_lengths.h"
#include "commit.h"
#include "controller.h"
#include "draft_scores.h"
#include "found_drafts.h"
#include "length_policy.h"
#include "options.h"
#include "prompt_scores.h"
#include "stats.h"
#include "token_mask.h"
#include "workspace.h"

namespace specc {

enum class Step { kToken, kDone, kCancelled };

// The round contract: tokens x[0..n] are committed, the state holds x[0..n-1], x[n] is the root. Rows of the state
// beyond n hold whatever rejected drafts left there; they are overwritten before they are read. So nothing is ever
// rolled back: to take tokens back is to lower a number.
class Session {
 public:
  // With a place in `workspace`; without one, in a workspace of its own. Throws Error(SessionState) if that is full.
  explicit Session(std::shared_ptr<Workspace> workspace);
  explicit Session(std::shared_ptr<Artifact> artifact);

  Options& options() {
    sampler_ready_ = false;
    sampled_ = {};
    return options_;
  }
  const Artifact& artifact() const { return *artifact_; }
  const Workspace& workspace() const { return place_.workspace(); }
  void set_drafter(specc_drafter_fn drafter, void* user);  // null: the artifact's own
  void set_mask(specc_mask_fn mask, void* user);           // null: everything is allowed

  // All or nothing: on failure and on cancellation (false) the text is as before, without unread tokens.
  bool append(const int64_t* ids, size_t count);
  void rewind(size_t count);
  // Plays a round if no token is left to read.
  Step next(int64_t* token);
  size_t unread() const { return unread_; }
  Finish finish() const { return unread_ > 0 ? Finish::kNone : finish_; }
  void cancel() noexcept { cancelled_.store(true, std::memory_order_release); }

  // Of the token that next() returned last, if `logprobs` was set.
  struct Logprobs {
    float token;
    size_t count;             // of the best
    const int64_t* top_ids;   // until the next call
    const float* top_logprobs;
  };
  Logprobs logprobs() const;
  // Of a token that the last append added, if `prompt_logprobs` was set.
  PromptScores::Score prompt_logprobs(size_t index) const { return prompt_scores_.at(index); }

  const Stats& stats() const { return stats_; }
  double acceptance_ewma() const { return acceptance_ewma_.value_or(0); }
  int64_t last_length() const { return artifact_->manifest().draft_lengths[last_length_index_]; }
  int64_t last_depth() const;
  const State& state() const { return state_; }

  // One function with inputs of the caller, on this session's state. See specc_session_run.
  size_t run(const char* function, const int64_t* const* inputs, const size_t* counts, size_t n_inputs, void* output,
             size_t capacity);

  // A round in the hands of a batch, in this order; next() gives what came of it. Whatever throws leaves the text as it
  // was, and the round at an end: fail() keeps the reason for next().
  bool may_play() const;       // false: there are tokens to read, or a failure or cancellation to tell
  bool open_round();           // false: the text has come to its end
  size_t longest() const;      // index of the longest draft that the next round may have
  bool adapts() const;         // whether a shorter one may be chosen
  LengthController& controller();
  DraftAccount& account() { return account_; }
  // `rate`: tokens per second that this length promises. False if cancelled.
  bool draft(size_t length_index, double rate);
  size_t rows() const { return play_.allowed + 1; }  // of the score
  // Writes them to the inputs from row `at` on.
  void fill_rows(size_t at) { fill_block(at, play_.allowed); }
  // Chooses from their logits; `seconds` of the score are this text's share.
  void choose(const float* logits, size_t stride, double seconds);
  void end_round(size_t taps_offset);
  void count_calls(const Frame::Counts& calls, uint32_t thread_syncs);
  void fail(std::exception_ptr reason) noexcept { failure_ = std::move(reason); }
  // Of the round at hand: the length that was drafted, how many were kept, and the seconds that drafting took.
  struct Outcome {
    size_t length_index, accepted;
    bool found;  // on the host, beside the drafter in the graph
    double draft_seconds;
  };
  Outcome outcome() const {
    const double drafting = play_.propose_seconds + stats_.draft_s - play_.draft_before;
    return {play_.length_index, play_.accepted, play_.round->given && !replaces(), drafting};
  }

 private:
  // Where the rows of the last prefill chunk or verification lie in the text; drafters read hidden states by such a
  // row.
  struct TapWindow {
    size_t start = 0, rows = 0;
    size_t offset = 0;  // of the first row in the call
    uint64_t call = 0;  // of the workspace: what a later one leaves takes their place
  };

  // A round from its beginning to its end.
  struct Play {
    const Round* round = nullptr;
    const Round* verified = nullptr;  // whose verification its drafts fit into
    size_t length_index = 0, depth_index = 0;
    size_t trusted = 0;        // drafts that are worth verifying
    size_t allowed = 0;        // of those, what a grammar did not forbid
    size_t accepted = 0;
    double seconds = 0;        // in this session's turn, and in choosing tokens
    double propose_seconds = 0;  // of which in the drafter's function
    bool in_batch = false, branched = false;  // the drafts were a tree
    double draft_before = 0, prefill_before = 0;  // of the statistics
    uint64_t prefill_tokens_before = 0;
    Stopwatch watch;
  };

  size_t root_position() const { return committed_.size() - 1; }  // n
  size_t visible() const { return committed_.size() - unread_; }
  size_t room_in_request() const;
  size_t room_in_context() const { return max_len_ - committed_.size(); }
  bool take_cancel() noexcept { return cancelled_.exchange(false, std::memory_order_acquire); }
  int64_t row_of(size_t position) const { return first_row_ + static_cast<int64_t>(position); }

  void require_text() const;
  void check_prompt(const int64_t* ids, size_t count) const;
  void check_lengths() const;
  void make_room(size_t tokens);
  void look_at_guards(bool last);
  void keep(size_t count);
  void drop_unread();
  bool catch_up(size_t from);
  void prefill_chunk(size_t from, size_t rows);
  void run_rows(const Plan& plan, size_t rows);
  bool score_prompt(size_t first);
  size_t score_block(size_t from, size_t first);
  bool extends() const { return artifact_->rounds().extend() != nullptr; }
  void fill_extension(size_t from, size_t rows);
  bool extend(size_t most_left);
  bool taps_cover(size_t position) const;

  size_t lowest_row(const Plan& plan, const std::vector<std::vector<int64_t>>& inputs) const;

  bool play_round();
  size_t most_drafts() const;
  size_t choose_length();
  size_t within_room(size_t index) const;
  size_t choose_found();
  size_t find(double rate);
  bool begin_round(size_t length_index, bool found);
  size_t propose(size_t k);
  bool branches() const;
  size_t longest_path(const Round& round) const;
  void hang(size_t count, bool chain);
  double commit_path(const Round& round);
  void show_state();
  bool ready_for(const Round& round);
  size_t fill_round(const Round& round);
  bool draws(const Round& round) const;
  void execute(const Round& round);
  bool chooses() const { return !options_.sampling.plain() || mask_ || options_.confidence != 0; }
  bool host_drafts() const { return drafter_ != nullptr || callback_ != nullptr; }
  bool on_host() const { return artifact_->manifest().drafter.on_host(); }
  // Whether a drafter on the host stands beside the one in the graph; or in its place.
  bool finds() const { return host_drafts() && !on_host() && options_.draft_source == DraftSource::kAny; }
  bool replaces() const { return !on_host() && options_.draft_source == DraftSource::kHost; }
  void ready_sampler();
  void draft_pieces();
  void verify_alone();
  double run_piece(const Plan& plan, size_t rows);
  void run_plan(const Plan& plan, size_t rows);
  size_t take_drafts(const Round& round);
  void fill_block(size_t at, size_t count);
  void commit(size_t taps_offset);
  void record(size_t kept);

  std::shared_ptr<Artifact> artifact_;
  const size_t max_len_, rows_beyond_;  // of a text, and what rounds write behind it
  Place place_;
  const int64_t first_row_;  // of the caches
  // The workspace's.
  State& state_;
  Inputs& inputs_;
  Frame& frame_;
  Options options_;
  Stats stats_;
  LengthController length_controller_, piece_controller_;  // for round functions, and for rounds in pieces
  LengthController host_controller_;  // where drafts are not the artifact's own
  DepthController depth_controller_;
  FoundDrafts found_drafts_;
  Membership membership_;  // of the texts in the making
  Window window_;
  DraftAccount account_;  // of drafts in a batch
  std::unique_ptr<HostDrafter> drafter_;
  specc_drafter_fn callback_ = nullptr;
  void* callback_user_ = nullptr;

  TokenMask mask_;
  std::unique_ptr<Sampler> sampler_;  // once tokens are chosen here
  bool sampler_ready_ = false;        // knows the options
  DraftScores draft_scores_;          // where drafts are drawn
  // The round's drafts, and where they may be a tree, of the root and each the row that it continues, and its depth.
  std::vector<int64_t> drafts_, parents_, depths_;
  std::vector<int32_t> draft_parents_;  // the same without the root, as samplers take it
  Sampled sampled_;                   // of the last round, if it was chosen here
  size_t round_kept_ = 0;             // tokens of the last round that were committed
  PromptScores prompt_scores_;
  Play play_;
  std::exception_ptr failure_;  // of a round that a batch played

  size_t unguarded_rounds_ = 0;  // since the guards were looked at
  std::vector<int64_t> committed_;
  std::vector<int64_t> round_tokens_;
  size_t unread_ = 0;           // committed tokens that next() has not returned yet
  size_t turn_start_ = 0;       // committed tokens when generation began
  size_t written_ = 0;          // the target's state is right for positions before this one
  size_t drafter_written_ = 0;  // and the drafter's; one that is extended also knows the token after each
  TapWindow taps_;
  double catch_up_s_ = 0;       // in this session's turns, for the round at hand
  Finish finish_ = Finish::kNone;
  size_t last_length_index_ = 0, last_depth_index_ = 0;
  std::optional<double> acceptance_ewma_;  // once there was a draft
  std::atomic<bool> cancelled_{false};
};

}  // namespace specc
