// What a caller may set on a session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "../manifest.h"
#include "../sampling/params.h"
#include "commit.h"
#include "length_policy.h"

namespace specc {

inline constexpr size_t kAdaptive = static_cast<size_t>(-1);
#ifdef SPECC_DEBUG
inline constexpr size_t kGuardRounds = 1;
#else
inline constexpr size_t kGuardRounds = 64;
#endif

// Throws Error(Option) for an artifact whose rounds choose the tokens themselves.
void require_pieces(const Manifest& manifest, std::string_view option);

// Who drafts, where there is more than one.
enum class DraftSource {
  kAny,    // the drafter in the graph, and those on the host where that pays
  kGraph,  // that in the graph alone
  kHost,   // the caller's, or else the artifact's on the host, alone
};

struct Options {
  size_t max_tokens = 128;
  size_t length_index = kAdaptive;  // into num_speculative_tokens
  size_t depth_index = kAdaptive;   // into drafter.depths
  double confidence = 0;            // below which drafts are not verified
  size_t guard_rounds = kGuardRounds;  // between two looks at the guards; 0: never
  LengthPolicy length_policy;
  DraftSource draft_source = DraftSource::kAny;
  double draft_weight = 1;  // beside other texts, for a policy that shares drafts among them
  int64_t prompt_logprobs = -1;  // -1: none; n: those of each token that is appended, and of the n best in its place
  StopRules rules;
  SamplingParams sampling;  // but for `eos`, which are `rules`

  // By name; throw Error(Option) for unknown names, values out of range, and what the artifact cannot do.
  void set(std::string_view name, int64_t value, const Manifest& manifest);
  void set(std::string_view name, double value, const Manifest& manifest);
  void set(std::string_view name, std::string_view value, const Manifest& manifest);
  void set(std::string_view name, std::vector<int64_t> ids, const Manifest& manifest);
  void set_logit_bias(std::vector<TokenBias> bias, const Manifest& manifest);

 private:
  void change(SamplingParams next, std::string_view name, const Manifest& manifest);
};

}  // namespace specc
