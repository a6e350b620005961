// How a session's tokens are drawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specc {

// Which drafts are kept. All three emit the target's own law (tests/runtime/test_sampling.py enumerates it).
enum class AcceptanceRule {
  kMatch,      // a draft that is the target's own choice, whose noise depends on (seed, position, token) alone
  kRejection,  // Leviathan et al. 2211.17192, Chen et al. 2302.01318: with probability p/q
  kBlock,      // Sun et al. 2403.10444: the longest part of the block that the joint p/q allows
};

struct TokenBias {
  int64_t token;
  float bias;
};

// Throws Error(TokenId) for a token of the option `name` that no vocabulary of this size has.
void require_token(int64_t token, int64_t vocab_size, const char* name);

// Processors run in vLLM's order (v1/sample/sampler.py) with its formulas, in f32: allowed tokens, bans, min_tokens,
// logit_bias; repetition, frequency and presence penalty; then, if temperature > 0, temperature, min_p, top_k, top_p.
struct SamplingParams {
  double temperature = 0;          // 0: greedy, under any rule; or 1e-30 and more
  int64_t top_k = 0;               // 0: all; equals of the k-th are kept, as in vLLM and transformers
  double top_p = 1;                // (0, 1]
  double min_p = 0;                // [0, 1]
  double repetition_penalty = 1;   // > 0; of tokens in prompt or output
  double frequency_penalty = 0;    // for each time that a token is in the output
  double presence_penalty = 0;     // once for a token that is in the output
  std::vector<TokenBias> logit_bias;
  std::vector<int64_t> banned;     // never drawn
  int64_t min_tokens = 0;          // of output, before which `eos` is not drawn
  std::vector<int64_t> eos;        // the caller adds its stop tokens
  int64_t seed = 0;
  int64_t logprobs = -1;           // -1: none; n: those of the token drawn and of the n best
  AcceptanceRule rule = AcceptanceRule::kMatch;

  // Throws Error(Option), Error(TokenId).
  void check(int64_t vocab_size) const;

  // Whether a token is argmax(logits / temperature + noise) and nothing else, as specc.accept in a graph has it.
  bool plain() const;
  bool filters() const;  // whether some tokens of a row are left out for being unlikely
  bool counts() const;   // whether logits depend on the tokens before
};

}  // namespace specc
