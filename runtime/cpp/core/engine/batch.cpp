#include "batch.h"

#include <algorithm>
#include <string>

#include "../error.h"
#include "results.h"

namespace specc {
namespace {

size_t texts_of(const Artifact& artifact, size_t texts) {
  return texts == 0 ? static_cast<size_t>(artifact.manifest().model.max_num_seqs) : texts;
}

}  // namespace

Batch::Batch(std::shared_ptr<Artifact> artifact, size_t texts)
    : workspace_(std::make_shared<Workspace>(artifact, texts_of(*artifact, texts))),
      lengths_(artifact->manifest().draft_lengths) {
  if (artifact->rounds().score() == nullptr) {
    throw Error(Code::Option, "the artifact does not score several texts in one call")
        .where("batch")
        .cure("compile it with --max-num-seqs, or open sessions, which take turns");
  }
  playing_.reserve(workspace_->texts());
  texts_.reserve(workspace_->texts());
}

void Batch::step(Session* const* sessions, size_t count) {
  check(sessions, count);
  open(sessions, count);
  draft();
  if (!playing_.empty()) score();
}

void Batch::check(Session* const* sessions, size_t count) const {
  for (size_t i = 0; i < count; ++i) {
    const bool twice = std::find(sessions, sessions + i, sessions[i]) != sessions + i;
    if (&sessions[i]->workspace() == workspace_.get() && !twice) continue;
    throw Error(Code::Option, twice ? "a session is named twice" : "a session is not of this batch")
        .where("session " + std::to_string(i))
        .cure("open its sessions with specc_batch_session, and name each once");
  }
}

// Those that have a round to play, and how long their drafts are.
void Batch::open(Session* const* sessions, size_t count) {
  playing_.clear();
  texts_.clear();
  for (size_t i = 0; i < count; ++i) {
    Session& session = *sessions[i];
    try {
      if (!session.may_play() || !session.open_round()) continue;
      texts_.push_back({&session.controller(), &session.account(), session.longest(), session.adapts(), 0, {}});
      playing_.push_back({&session});
    } catch (...) {
      session.fail(std::current_exception());
    }
  }
  lengths_.choose(texts_);
}

// Leaves out whose drafting failed, or was cancelled.
void Batch::draft() {
  size_t kept = 0;
  for (size_t i = 0; i < playing_.size(); ++i) {
    Session& session = *playing_[i].session;
    try {
      if (session.draft(texts_[i].index, lengths_.rate(texts_[i], playing_.size()))) {
        playing_[kept++] = playing_[i];
      } else {
        session.cancel();  // which next() is to tell
      }
    } catch (...) {
      session.fail(std::current_exception());
    }
  }
  playing_.resize(kept);
}

void Batch::score() {
  size_t rows = 0;
  for (Playing& playing : playing_) {
    playing.row = rows;
    playing.session->fill_rows(rows);
    rows += playing.session->rows();
  }
  const Artifact& artifact = *workspace_->artifact();
  ModelLibrary& library = artifact.library();
  const Plan& plan = *artifact.rounds().score();
  Frame& frame = workspace_->frame();
  const Results results(frame, library);
  try {
    workspace_->begin_taps();
    const Frame::Counts before = frame.counts();
    uint32_t met;
    double seconds;
    {
      const Turn turn(library.turn());
      met = library.thread_syncs();
      const Stopwatch watch;  // waiting for other sessions is no cost of the pass
      frame.execute(plan, workspace_->inputs().views(plan, rows));
      seconds = watch.seconds();
      met = library.thread_syncs() - met;
    }
    const Frame::Counts now = frame.counts();
    for (const Playing& playing : playing_) {
      playing.session->count_calls({now.launches - before.launches, now.host_syncs - before.host_syncs}, met);
    }
    counts_ = {counts_.passes + 1, counts_.texts + playing_.size(), counts_.rows + rows, counts_.seconds + seconds};
    const Frame::Matrix logits = frame.matrix(plan, artifact.rounds().score_logits(), rows);
    lengths_.observe_pass(rows, seconds);
    take(logits, rows, seconds);
  } catch (...) {
    for (const Playing& playing : playing_) playing.session->fail(std::current_exception());
  }
}

struct Batch::Scored {
  Playing* playing;
  const Frame::Matrix& logits;
  double seconds_per_row;
};

// What a text chooses depends on nothing of another: not on who chooses at the same time either.
void Batch::choose(void* scored, int32_t text) {
  const Scored& all = *static_cast<const Scored*>(scored);
  Playing& playing = all.playing[text];
  Session& session = *playing.session;
  try {
    const double seconds = all.seconds_per_row * static_cast<double>(session.rows());
    session.choose(all.logits.data + playing.row * all.logits.stride, all.logits.stride, seconds);
    playing.chosen = true;
  } catch (...) {
    session.fail(std::current_exception());
  }
}

// All choose before any commits: moving the rows of a tree's path is a call, whose results take the place of the logits.
void Batch::take(const Frame::Matrix& logits, size_t rows, double seconds) {
  ModelLibrary& library = workspace_->artifact()->library();
  Scored scored{playing_.data(), logits, seconds / static_cast<double>(rows)};
  {
    const Turn turn(library.turn());
    library.parallel(static_cast<int32_t>(playing_.size()), choose, &scored);
  }
  const auto failed = [](const Playing& playing) { return !playing.chosen; };
  playing_.erase(std::remove_if(playing_.begin(), playing_.end(), failed), playing_.end());
  for (const Playing& playing : playing_) {
    Session& session = *playing.session;
    try {
      session.end_round(playing.row);
    } catch (...) {
      session.fail(std::current_exception());
      continue;
    }
    const Session::Outcome outcome = session.outcome();
    if (outcome.found) continue;
    if (outcome.length_index > 0) lengths_.observe_drafting(outcome.length_index, outcome.draft_seconds);
    lengths_.observe_drafts(session.account(), outcome.length_index, outcome.accepted);
  }
}

}  // namespace specc
