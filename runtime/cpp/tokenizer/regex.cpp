#include "regex.h"

#include <stdexcept>

#include "utf8.h"

namespace specc::tok {

namespace {

enum Op : uint32_t {
  kMatch, kChar, kSet, kSplit, kJump, kGreedy, kLazy, kPossessive, kLook, kAtomic, kAssert, kOps
};

constexpr size_t kFail = SIZE_MAX;
constexpr int kDeepest = 64;
constexpr size_t kMostFrames = size_t{1} << 22;

// Where to go on when the current way fails.
struct Frame {
  uint32_t pc;
  uint32_t op;   // kSplit: at `pc`; kGreedy: one character less, down to `bound`; kLazy: one more, `bound` left
  size_t at;
  size_t bound;
};

class Matcher {
 public:
  Matcher(const Instruction* code, const std::vector<CharSet>& sets, std::string_view text)
      : code_(code), sets_(sets), text_(text) {}

  // End of the match that starts at `at`, or kFail.
  size_t match(size_t at) {
    steps_ = 10'000'000 + 64 * (text_.size() - at);
    return run(0, at, 0);
  }

 private:
  size_t run(uint32_t pc, size_t at, int depth);
  bool resume(size_t floor, uint32_t& pc, size_t& at);
  bool look(const Instruction& in, uint32_t pc, size_t at, int depth);
  bool holds(const Instruction& in, size_t at) const;
  bool is_word(size_t at, const CharSet& words) const { return words.has(decode(text_, at).value); }

  bool take(const CharSet& set, size_t& at) const {
    if (at >= text_.size()) return false;
    const CodePoint c = decode(text_, at);
    if (!set.has(c.value)) return false;
    at += c.bytes;
    return true;
  }

  void push(const Frame& frame) {
    if (stack_.size() >= kMostFrames) throw std::runtime_error("tokenizer: a pattern needs too much memory");
    stack_.push_back(frame);
  }

  const Instruction* code_;
  const std::vector<CharSet>& sets_;
  std::string_view text_;
  std::vector<Frame> stack_;
  size_t steps_ = 0;
};

bool Matcher::resume(size_t floor, uint32_t& pc, size_t& at) {
  while (stack_.size() > floor) {
    Frame& top = stack_.back();
    pc = top.pc;
    at = top.at;
    if (top.op == kSplit) {
      stack_.pop_back();
      return true;
    }
    if (top.op == kGreedy) {
      at = previous(text_, at);
      if (at <= top.bound)
        stack_.pop_back();
      else
        top.at = at;
      ++pc;
      return true;
    }
    const Instruction& in = code_[pc];
    if (top.bound > 0 && take(sets_[in.a], at)) {
      top.at = at;
      --top.bound;
      ++pc;
      return true;
    }
    stack_.pop_back();
  }
  return false;
}

bool Matcher::look(const Instruction& in, uint32_t pc, size_t at, int depth) {
  for (uint32_t back = in.c; back > 1; --back) {
    if (at == 0) return in.b == 1;
    at = previous(text_, at);
  }
  return (run(pc + 1, at, depth + 1) == kFail) == (in.b == 1);
}

bool Matcher::holds(const Instruction& in, size_t at) const {
  const size_t end = text_.size();
  switch (in.a) {
    case 0: return at == 0 || (text_[at - 1] == '\n' && at < end);
    case 1: return at == end || text_[at] == '\n';
    case 2: return at == 0;
    case 3: return at == end;
    case 4: return at == end || (at + 1 == end && text_[at] == '\n');
    default: {
      const CharSet& words = sets_[in.b];
      const bool before = at > 0 && is_word(previous(text_, at), words);
      const bool after = at < end && is_word(at, words);
      return (before != after) == (in.a == 5);
    }
  }
}

size_t Matcher::run(uint32_t pc, size_t at, int depth) {
  if (depth > kDeepest) throw std::runtime_error("tokenizer: a pattern is nested too deep");
  const size_t floor = stack_.size();
  for (;;) {
    if (steps_-- == 0) throw std::runtime_error("tokenizer: a pattern takes too many steps on this text");
    const Instruction& in = code_[pc];
    bool alive = true;
    switch (in.op) {
      case kMatch:
        stack_.resize(floor);
        return at;
      case kChar: {
        const CodePoint c = at < text_.size() ? decode(text_, at) : CodePoint{kNone, 0};
        alive = c.value == in.a;
        at += c.bytes;
        ++pc;
        break;
      }
      case kSet:
        alive = take(sets_[in.a], at);
        ++pc;
        break;
      case kSplit:
        push({in.b, kSplit, at, 0});
        pc = in.a;
        break;
      case kJump:
        pc = in.a;
        break;
      case kGreedy:
      case kLazy:
      case kPossessive: {
        const CharSet& set = sets_[in.a];
        uint32_t count = 0;
        while (count < in.b && take(set, at)) ++count;
        alive = count == in.b;
        if (!alive) break;
        if (in.op == kLazy) {
          push({pc, kLazy, at, in.c == kNone ? SIZE_MAX : in.c - in.b});
        } else {
          const size_t least = at;
          while ((in.c == kNone || count < in.c) && take(set, at)) ++count;
          if (in.op == kGreedy && at > least) push({pc, kGreedy, at, least});
        }
        ++pc;
        break;
      }
      case kLook:
        alive = look(in, pc, at, depth);
        pc = in.a;
        break;
      case kAtomic: {
        const size_t end = run(pc + 1, at, depth + 1);
        alive = end != kFail;
        at = end;
        pc = in.a;
        break;
      }
      default:
        alive = holds(in, at);
        ++pc;
    }
    if (!alive && !resume(floor, pc, at)) return kFail;
  }
}

}  // namespace

Regex::Regex(Array<uint32_t> words, const std::vector<CharSet>& sets)
    : code_(reinterpret_cast<const Instruction*>(words.data)), size_(words.size / 4), sets_(&sets) {
  if (words.size % 4 != 0 || size_ == 0 || code_[size_ - 1].op != kMatch) damaged("a pattern has no end");
  for (size_t pc = 0; pc < size_; ++pc) {
    const Instruction& in = code_[pc];
    const bool has_set = in.op == kSet || (in.op >= kGreedy && in.op <= kPossessive);
    const bool has_target = in.op == kSplit || in.op == kJump || in.op == kLook || in.op == kAtomic;
    if (in.op >= kOps || (has_set && in.a >= sets.size()) || (has_target && in.a >= size_) ||
        (in.op == kSplit && in.b >= size_) || (in.op == kAssert && (in.a > 6 || (in.a > 4 && in.b >= sets.size()))) ||
        (has_set && in.op != kSet && in.c < in.b))
      damaged("a pattern has a wrong instruction");
  }
}

void Regex::find_all(std::string_view text, std::vector<Match>& out) const {
  out.clear();
  Matcher matcher(code_, *sets_, text);
  size_t last = kFail;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = matcher.match(at);
    const bool repeats_empty = end == at && last == end;
    if (end == kFail || repeats_empty) {
      at += at < text.size() ? decode(text, at).bytes : 1;
      continue;
    }
    out.push_back({at, end});
    last = end;
    at = end;
  }
}

std::vector<Regex> read_regexes(Reader reader, const std::vector<CharSet>& sets) {
  std::vector<Regex> regexes;
  for (uint32_t count = reader.u32(); count > 0; --count) regexes.emplace_back(reader.array<uint32_t>(), sets);
  reader.finish();
  return regexes;
}

}  // namespace specc::tok
