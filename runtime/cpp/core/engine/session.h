// One text in the making: committed tokens, the model's state for them, and the loop that adds to both.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "../artifact.h"
#include "../drafters/host_drafter.h"
#include "../frame.h"
#include "../sampling/sampler.h"
#include "specc.h"
#include "commit.h"
#include "controller.h"
#include "draft_scores.h"
#include "found_drafts.h"
#include "inputs.h"
#include "length_policy.h"
#include "options.h"
#include "state.h"
#include "stats.h"
#include "token_mask.h"

namespace specc {

enum class Step { kToken, kDone, kCancelled };

// The round contract: tokens x[0..n] are committed, the state holds x[0..n-1], x[n] is the root. Rows of the state
// beyond n hold whatever rejected drafts left there; they are overwritten before they are read. So nothing is ever
// rolled back: to take tokens back is to lower a number.
class Session {
 public:
  explicit Session(std::shared_ptr<Artifact> artifact);

  Options& options() {
    sampler_ready_ = false;
    sampled_ = {};
    return options_;
  }
  const Artifact& artifact() const { return *artifact_; }
  void set_drafter(specc_drafter_fn drafter, void* user);  // null: the artifact's own
  void set_mask(specc_mask_fn mask, void* user);           // null: everything is allowed

  // All or nothing: on failure and on cancellation (false) the text is as before, without unread tokens.
  bool append(const int64_t* ids, size_t count);
  void rewind(size_t count);
  Step next(int64_t* token);
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

  const Stats& stats() const { return stats_; }
  double acceptance_ewma() const { return acceptance_ewma_.value_or(0); }
  int64_t last_length() const { return artifact_->manifest().draft_lengths[last_length_index_]; }
  int64_t last_depth() const;
  const State& state() const { return state_; }

  // One function with inputs of the caller, on this session's state. See specc_session_run.
  size_t run(const char* function, const int64_t* const* inputs, const size_t* counts, size_t n_inputs, void* output,
             size_t capacity);

 private:
  // Where the rows of the last prefill chunk or verification lie in the text; drafters read hidden states by such a
  // row.
  struct TapWindow {
    size_t start = 0, rows = 0;
    bool covers(size_t position) const { return position >= start && position - start < rows; }
  };

  size_t root_position() const { return committed_.size() - 1; }  // n
  size_t visible() const { return committed_.size() - unread_; }
  size_t room_in_request() const;
  size_t room_in_context() const { return max_len_ - committed_.size(); }
  bool take_cancel() noexcept { return cancelled_.exchange(false, std::memory_order_acquire); }

  void check_prompt(const int64_t* ids, size_t count) const;
  void check_lengths() const;
  void make_room(size_t tokens);
  void look_at_guards(bool last);
  void keep(size_t count);
  void drop_unread();
  bool catch_up(size_t from);
  void prefill_chunk(size_t from, size_t rows);
  void run_rows(const Plan& plan, size_t rows);
  bool extends() const { return artifact_->rounds().extend() != nullptr; }
  void fill_extension(size_t from, size_t rows);
  bool extend(size_t most_left);

  size_t lowest_row(const Plan& plan, const std::vector<std::vector<int64_t>>& inputs) const;

  bool play_round();
  bool adapts() const { return options_.length_index == kAdaptive && options_.length_policy.adapts(); }
  size_t most_drafts() const;
  size_t choose_length();
  size_t within_room(size_t index) const;
  size_t choose_found();
  size_t propose(size_t k);
  bool branches() const;
  size_t longest_path(const Round& round) const;
  void hang(size_t count, bool chain);
  double commit_path(const Round& round);
  void show_state();
  bool ready_for(const Round& round);
  struct Execution {
    size_t accepted;
    size_t trusted;  // drafts that were worth verifying
    size_t allowed;  // of those, what a grammar did not forbid
    double seconds;  // in this session's turn, and in choosing tokens
  };
  size_t fill_round(const Round& round);
  bool draws(const Round& round) const;
  Execution execute(const Round& round);
  bool chooses() const { return !options_.sampling.plain() || mask_ || options_.confidence != 0; }
  bool host_drafts() const { return drafter_ != nullptr || callback_ != nullptr; }
  bool on_host() const { return artifact_->manifest().drafter.on_host(); }
  // Whether a drafter on the host stands beside the one in the graph; or in its place.
  bool finds() const { return host_drafts() && !on_host() && options_.draft_source == DraftSource::kAny; }
  bool replaces() const { return !on_host() && options_.draft_source == DraftSource::kHost; }
  void ready_sampler();
  LengthController& controller() {
    if (replaces() || (on_host() && callback_ != nullptr)) return host_controller_;
    return chooses() ? piece_controller_ : length_controller_;
  }
  Execution execute_pieces(const Round& round);
  double run_piece(const Plan& plan, size_t rows);
  void run_plan(const Plan& plan, size_t rows);
  size_t take_drafts(const Round& round);
  const Round& fill_verify(size_t drafts);
  void commit(const Round& round, size_t accepted);
  void record(const Round& round, size_t length_index, const Execution& done, size_t kept, double draft_seconds);

  std::shared_ptr<Artifact> artifact_;
  const size_t max_len_, rows_beyond_;  // of a text, and what rounds write behind it
  State state_;
  Inputs inputs_;
  Frame frame_;
  Options options_;
  Stats stats_;
  LengthController length_controller_, piece_controller_;  // for round functions, and for rounds in pieces
  LengthController host_controller_;  // where drafts are not the artifact's own
  DepthController depth_controller_;
  FoundDrafts found_drafts_;
  Membership membership_;  // of the texts in the making
  Window window_;
  std::unique_ptr<HostDrafter> drafter_;
  specc_drafter_fn callback_ = nullptr;
  void* callback_user_ = nullptr;

  TokenMask mask_;
  std::unique_ptr<Sampler> sampler_;  // once tokens are chosen here
  bool sampler_ready_ = false;        // knows the options
  DraftScores draft_scores_;          // where drafts are drawn
  std::vector<int32_t> draft_parents_;  // the row that each draft continues, where drafts may be a tree
  Sampled sampled_;                   // of the last round, if it was chosen here
  size_t round_kept_ = 0;             // tokens of the last round that were committed

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
