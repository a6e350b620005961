// Several texts in one pass of the target: each brings its root and its drafts, as many as it has.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "batch_lengths.h"
#include "session.h"
#include "workspace.h"

namespace specc {

// Sessions of one workspace. A text's rows have the bits that they have alone, whatever lies beside them, so its tokens
// are those that its session makes by itself. What fails in one of them is that one's failure.
class Batch {
 public:
  // texts: that may be in it at once; 0 for as many as the artifact has room for. Throws Error(Option, Memory).
  Batch(std::shared_ptr<Artifact> artifact, size_t texts);

  const std::shared_ptr<Workspace>& workspace() const { return workspace_; }

  // Plays a round of each session that has one to play: that has not ended, was not cancelled, and whose tokens are all
  // read. Their next() then gives what came of it, a failure too. Throws Error(Option) for a session that is not of
  // this batch, or named twice. Allocates nothing once its sessions have prompts.
  void step(Session* const* sessions, size_t count);

  // Of all passes so far.
  struct Counts {
    uint64_t passes = 0, texts = 0, rows = 0;
    double seconds = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  void check(Session* const* sessions, size_t count) const;
  void open(Session* const* sessions, size_t count);
  void draft();
  void score();
  void take(const Frame::Matrix& logits, size_t rows, double seconds);

  std::shared_ptr<Workspace> workspace_;
  BatchLengths lengths_;
  struct Playing {
    Session* session;
    size_t row = 0;  // of its root in the call
    bool chosen = false;
  };
  struct Scored;
  static void choose(void* scored, int32_t text);
  std::vector<Playing> playing_;
  std::vector<BatchLengths::Text> texts_;
  Counts counts_;
};

}  // namespace specc
