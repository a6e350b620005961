// What the model says of the tokens of a prompt: the logarithm of each one's probability after those before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace specc {

class PromptScores {
 public:
  struct Score {
    float logprob;
    int64_t rank;  // 1 is the best, of equals the lowest id; 0: the text's first token, which follows nothing
    size_t count;  // of the best
    const int64_t* top_ids;  // until the next append
    const float* top_logprobs;
  };

  // Of `tokens` that are appended, each with the `top` best in its place.
  void begin(size_t tokens, size_t top);
  void clear() { begin(0, 0); }
  void add_first();
  // logits[0, vocab_size): of the row before `token`. Throws Error(NotANumber).
  void add(const float* logits, size_t vocab_size, int64_t token);
  // Throws Error(SessionState) if none was told of that token.
  Score at(size_t index) const;

 private:
  size_t top_ = 0;
  std::vector<float> logprobs_, top_logprobs_;
  std::vector<int64_t> ranks_, top_ids_;
  std::vector<std::pair<float, int64_t>> heap_;
};

}  // namespace specc
