// manifest.json as data: read, checked, and nothing taken on trust. What the names refer to (entries, weights) is
// resolved later, in plan.h, when the library and the weights are open.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arena.h"

namespace specc {

inline constexpr int64_t kRows = -1;  // the dimension "T"

struct ValueSpec {
  std::string name;
  int32_t dtype = 0;
  std::vector<int64_t> shape;  // kRows or a number
};

struct CallSpec {
  std::string entry;
  std::vector<std::string> in, out;
  std::vector<int64_t> attrs;
};

struct FunctionSpec {
  std::string name;
  std::vector<ValueSpec> inputs, outputs;
  std::vector<CallSpec> calls;
};

struct ModelSpec {
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;
  int64_t max_num_seqs = 1;  // texts that the caches hold, one after the other; a session has the first
  int64_t prefill_chunk = 0;
  std::vector<int64_t> eos_token_ids;
};

// Through which caches a drafter drafts.
enum class DraftState {
  kNone,    // none: drafts are proposed by the engine (or a callback), not by the round function
  kTarget,  // what the target's calls write
  kOwn,     // caches that its own calls fill, which rounds without drafts leave behind
};

struct DrafterSpec {
  std::string kind;  // for messages only
  DraftState state = DraftState::kNone;
  int64_t lag = 0;           // rows before the root that a round feeds to the drafter again
  std::string extend;        // fills the drafter's own state from what the target left; empty: prefill does
  int64_t min_length = 0;    // a round drafts nothing before there are as many positions in the state
  int64_t draft_rows = 0;    // positions from the root on that drafting writes state for
  std::string host_drafter;  // empty: the artifact brings none
  std::vector<int64_t> depths;
  int64_t prompt_lookup_min = 2, prompt_lookup_max = 4;  // ngram
  int64_t max_tree_depth = 24;                           // suffix
  double max_spec_factor = 1.0, min_token_prob = 0.1;    // suffix
  int64_t max_matches = 8, max_window = 4096;            // mtp:structure
  double min_similarity = 0;                             // mtp:structure

  bool on_host() const { return state == DraftState::kNone; }
};

struct RoundSpec {
  std::string function;
  int64_t length = 0, depth = 0;  // drafts; depth 0 where depths do not matter
  std::string propose, verify;    // the round in pieces; empty: there is none
  int64_t nodes = 0;              // tokens verified after the root: more than `length` where drafts are the graph's tree
  std::string commit{};           // moves an accepted path's rows, where drafts are a tree that the host gives
};

struct FileSpec {
  std::string path;
  uint64_t bytes = 0;
  std::string sha256;
};

struct Manifest {
  std::string text;  // as read
  std::string arch, isa;
  ModelSpec model;
  std::vector<int64_t> draft_lengths;  // num_speculative_tokens: ascending, begins with 0
  DrafterSpec drafter;
  std::vector<RoundSpec> rounds;
  std::string score;  // verifies what several texts drafted; empty: the artifact has no such function
  std::vector<StateSpec> state;
  ArenaSpec arena;  // where it lies
  std::vector<FunctionSpec> functions;
  std::string weights_file;
  uint64_t weights_bytes = 0;
  std::vector<FileSpec> files;

  size_t longest_draft() const { return static_cast<size_t>(draft_lengths.back()); }
  // Whether every round has its pieces, so that the engine may choose the tokens.
  bool in_pieces() const;

  // Parses and checks. `source` is named in errors. Throws Error(NotAnArtifact, Damaged, TooNew or WrongDevice);
  // versions are checked before anything else is read, and the device before what only makes sense on it.
  static Manifest parse(std::string text, const std::string& source);
};

}  // namespace specc
