// From a round's logits to the tokens that it adds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "params.h"

namespace specc {

// A text: the first `prompt` of `count` tokens were given, the rest generated. The last one is the root x[n], n = count-1.
struct History {
  const int64_t* tokens = nullptr;
  size_t prompt = 0, count = 0;
};

// How the drafter drew its drafts; rejection and block need to know, match does not.
enum class DraftLaw {
  kCertain,      // without chance (n-gram, argmax)
  kTemperature,  // from softmax(draft logits / temperature), with the noise of noise_streams.h
  kProcessed,    // by Sampler::draft: from the draft logits after the same processors as the target's
};

// What a drafter computed for each draft. `logits` null: nothing (kCertain).
struct DraftLogits {
  const float* logits = nullptr;  // f32 [K, columns]: row j is the law that draft j was drawn from; no token elsewhere
  size_t columns = 0, stride = 0; // floats from row to row
  const int64_t* ids = nullptr;   // target ids of the columns, [columns] or [K, columns]; null: column = id
  size_t ids_stride = 0;          // 0: the same for each row
  DraftLaw law = DraftLaw::kCertain;
};

// All arrays are the caller's. Row 0 is the root's, row r the one of draft r-1: its logits say what follows it.
struct RoundLogits {
  const float* logits = nullptr;      // f32 [K+1, >= vocabulary]
  size_t stride = 0;                  // floats from row to row
  const int64_t* drafts = nullptr;    // [K]
  size_t draft_count = 0;             // K
  const int32_t* parents = nullptr;   // [K]: the row that draft j continues, <= j; null: a chain, parents[j] = j
  const uint32_t* allowed = nullptr;  // [K+1, words]: bit v % 32 of word v / 32 lets row r be followed by v; null: all
  size_t allowed_words = 0;           // at least vocabulary / 32, rounded up
  DraftLogits draft;
};

// Arrays belong to the sampler until its next call.
struct Sampled {
  size_t accepted = 0;                  // drafts kept; accepted + 1 tokens are new
  const int64_t* tokens = nullptr;      // [accepted + 1]: those drafts, then the token that follows them
  const int32_t* rows = nullptr;        // [accepted + 1]: the row that each token was chosen at: 0, then accepted drafts'
  // With params.logprobs = n >= 0. Of the target's own law at temperature 1, before any processor, as vLLM's raw_logprobs.
  const float* logprobs = nullptr;      // [accepted + 1]
  const int64_t* top_ids = nullptr;     // [accepted + 1, n], best first; of equals the lowest id
  const float* top_logprobs = nullptr;  // [accepted + 1, n]
};

// One session's. Allocates when made and in set(); nothing in a round.
class Sampler {
 public:
  // vocab_size: ids that logits are looked at for; max_rows: K+1 (or nodes of a tree and the root) at most.
  Sampler(int64_t vocab_size, size_t max_rows);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Throws Error(Option), Error(TokenId) for params that are wrong.
  void set(const SamplingParams& params);
  const SamplingParams& params() const;

  // Penalties at a row count the drafts on the way to it. Throws Error(NotANumber) if a logit that decides is NaN,
  // Error(Option) if nothing is allowed, or for rules that cannot be: block on a tree.
  Sampled choose(const History& history, const RoundLogits& round);

  // Draws draft j (0-based), whose predecessors are drafts[0..j), from row 0 of `draft` (kProcessed): its own noise under
  // rejection and block, the target's under match, where that makes them agree more often. -1 if nothing is allowed.
  int64_t draft(const History& history, const int64_t* drafts, size_t j, const DraftLogits& draft,
                const uint32_t* allowed = nullptr);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specc
