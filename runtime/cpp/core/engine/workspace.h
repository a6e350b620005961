// What the calls of a model need beside its weights: state for as many texts as one call may take, and what is fed in.
// A session has a place in it; one that is alone has a workspace of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "../artifact.h"
#include "../frame.h"
#include "inputs.h"
#include "state.h"

namespace specc {

class Workspace {
 public:
  // texts: 1, or as many as the artifact scores in one call, at most. Throws Error(Option, Memory).
  Workspace(std::shared_ptr<Artifact> artifact, size_t texts);

  const std::shared_ptr<Artifact>& artifact() const { return artifact_; }
  size_t texts() const { return taken_.size(); }
  bool batched() const { return texts() > 1; }
  State& state() { return state_; }
  Inputs& inputs() { return inputs_; }
  Frame& frame() { return frame_; }

  // Calls so far that left hidden states by row of the call, which the next one writes over.
  uint64_t taps() const { return taps_; }
  uint64_t begin_taps() { return ++taps_; }

 private:
  friend class Place;

  std::shared_ptr<Artifact> artifact_;
  const size_t most_rows_;  // of the longest score, over all texts
  State state_;
  Inputs inputs_;
  Frame frame_;
  std::vector<bool> taken_;  // by text
  uint64_t taps_ = 0;
};

// The rows of one text, until this goes. Whoever has them next writes them before it reads them.
class Place {
 public:
  // Throws Error(SessionState) if all are taken.
  explicit Place(std::shared_ptr<Workspace> workspace);
  ~Place() { workspace_->taken_[index_] = false; }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  Workspace& workspace() const { return *workspace_; }
  int64_t first_row() const;

 private:
  std::shared_ptr<Workspace> workspace_;
  size_t index_;
};

}  // namespace specc
