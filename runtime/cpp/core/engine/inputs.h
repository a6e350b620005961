// The small buffers a session feeds to prefill and round functions, and the views of them each function declares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "../manifest.h"
#include "../model_library.h"
#include "../plan.h"

namespace specc {

// The inputs that the engine feeds to functions; ir/round_inputs.py says what they mean.
constexpr int64_t kDrafts = -2;  // in a shape: as many as the round drafts
constexpr int64_t kBlock = -3;   // and one more, the root
struct InputSpec {
  const char* name;
  int32_t dtype;
  int64_t rows;  // a number, kRows or kDrafts
};
extern const std::vector<InputSpec> kPrefillInputs, kExtendInputs, kRoundInputs, kVerifyInputs, kScoreInputs,
    kCommitInputs;

class Inputs {
 public:
  // score_rows: of the longest score.
  Inputs(const Manifest& manifest, ModelLibrary& library, size_t score_rows);
  ~Inputs();
  Inputs(const Inputs&) = delete;
  Inputs& operator=(const Inputs&) = delete;

  // Filled in by the session before it runs a function.
  int64_t root = 0, previous = 0, length = 0, first_row = 0, tap_row = 0, seed = 0;
  double temperature = 0;
  std::vector<int64_t> tokens, positions, rows;  // prefill, verify, score, extension (whose tokens are called next_tokens)
  std::vector<int64_t> drafts;                   // host drafters
  std::vector<int64_t> parents;                  // where drafts may be a tree: of each row
  std::vector<int64_t> depths, nodes;            // the root's first

  // Rows of the longest prefill or extension.
  size_t chunk() const { return chunk_; }

  // Prepares a plan whose inputs are named as above, and its views for up to `usual_rows` rows, which may be more than a
  // chunk.
  void bind(const Plan& plan, size_t usual_rows = 0);
  // Views for `rows` rows (any number, if the plan has no "T": those are made by bind). Made at the first call for a
  // number of rows; the caller holds the library's turn.
  specc_tensor* const* views(const Plan& plan, size_t rows);

 private:
  using Views = std::vector<specc_tensor*>;
  struct Bound {
    bool has_rows = false;
    std::vector<Views> by_rows;  // [0] for plans without "T"
  };

  void* buffer(const std::string& name);
  void make(const Plan& plan, size_t rows, Views& views);

  const size_t chunk_;
  ModelLibrary& library_;
  std::unordered_map<const Plan*, Bound> bound_;
};

}  // namespace specc
