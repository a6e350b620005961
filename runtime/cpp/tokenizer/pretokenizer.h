// The pre-tokenizer: cuts the text into the pieces that the model works on.
#pragma once

#include <string>
#include <vector>

#include "normalizer.h"

namespace specc::tok {

struct Piece {
  size_t begin, end;
  bool at_origin;  // begins where the whole input begins
};

// A text and the pieces of it that remain, in order, none empty.
struct Pieces {
  std::string text;
  std::vector<Piece> list;
};

class PreTokenizer {
 public:
  PreTokenizer(Reader reader, const Shared& shared);
  void apply(Pieces& pieces) const;

 private:
  enum class Behavior : uint32_t { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prepend : uint32_t { kNever, kFirst, kAlways };
  struct Operation {
    uint32_t kind;
    const Regex* regex = nullptr;
    const CharSet* set = nullptr;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    Prepend prepend = Prepend::kNever;
    bool split = false;
    std::string replacement;
  };
  struct Part {
    size_t begin, end;
    bool matched;
  };

  static Operation read(Reader& reader, const Shared& shared);
  static void find(const Operation& op, std::string_view text, std::vector<Match>& matches);
  static void cut(std::string_view text, const std::vector<Match>& matches, Behavior behavior, bool invert,
                  std::vector<Part>& parts);
  static void merge(std::vector<Part>& parts, Behavior behavior);
  static void split(const Operation& op, Pieces& pieces);
  static void rewrite(const Operation& op, Pieces& pieces);

  std::vector<Operation> operations_;
};

}  // namespace specc::tok
