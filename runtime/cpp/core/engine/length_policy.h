// How the longest draft of a round is bounded, by the name that a caller gives. Like LengthController it looks at what
// was before the round and at other texts, never at the block at hand, so the text does not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

namespace specc {

// Texts of one artifact that are in the making: from the end of an append until they finish. Any thread.
class Texts {
 public:
  struct Others {
    size_t count = 0;     // of all, the asking one included
    double heaviest = 0;  // of their weights
  };
  void join(double weight);
  void leave(double weight) noexcept;
  Others others() const;

 private:
  mutable std::mutex mutex_;
  std::vector<double> weights_;
};

// A membership of `Texts` that ends by itself.
class Membership {
 public:
  explicit Membership(Texts& texts) : texts_(texts) {}
  ~Membership() { leave(); }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;
  void join(double weight);
  void leave() noexcept;

 private:
  Texts& texts_;
  double weight_ = 0;  // 0: no member
};

// The window of TCP, in drafts: one more after a round that kept them all, half after one that lost some.
class Window {
 public:
  size_t drafts() const { return drafts_; }
  void observe(size_t drafted, size_t accepted, size_t most);
  void reset() { drafts_ = kFirst; }

 private:
  static constexpr size_t kFirst = 2;
  size_t drafts_ = kFirst;
};

class LengthPolicy {
 public:
  // adaptive: LengthController alone.
  // prompt-length: prompts under 32 tokens 2 drafts, over 2,048 tokens 8, others 5.
  // aimd: Window.
  // batch:N: none while more than N texts are in the making, else adaptive; batch alone is batch:16.
  // priority: adaptive, up to the share of the longest draft that the text's weight is of the heaviest one's.
  // Throws Error(Option) for another name.
  static LengthPolicy parse(std::string_view text);

  bool plain() const { return kind_ == Kind::kAdaptive; }
  // Whether LengthController chooses, up to `most`; else `most` is what is drafted.
  bool adapts() const { return kind_ != Kind::kPromptLength && kind_ != Kind::kAimd; }

  struct Facts {
    size_t prompt = 0;  // tokens before generation began
    double weight = 1;
    Texts::Others texts;
    size_t window = 0;
  };
  // Most drafts of the next round, of at most `longest`.
  size_t most(size_t longest, const Facts& facts) const;

 private:
  enum class Kind { kAdaptive, kPromptLength, kAimd, kBatch, kPriority };
  Kind kind_ = Kind::kAdaptive;
  size_t texts_ = 16;
};

}  // namespace specc
