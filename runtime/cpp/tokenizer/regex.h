// A backtracking matcher for the programs that the compiler makes of Oniguruma patterns.
//
//   op          operands
//   match       the pattern, look or atomic group ends here
//   char        a: code point
//   set         a: character set
//   split       continue at a; if that fails, at b
//   jump        continue at a
//   greedy      a: character set, b: least, c: most times (all ones: endless); longest first
//   lazy        the same, shortest first
//   possessive  the same, longest only
//   look        the code up to a must match here (b = 1: must not); c > 0: from c - 1 characters back
//   atomic      the code up to a, without backtracking into it
//   assert      a: 0 line start, 1 line end, 2 text start, 3 text end, 4 text end or its last newline, 5 word edge,
//               6 no word edge; b: the set of word characters
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "charset.h"
#include "reader.h"

namespace specc::tok {

struct Instruction {
  uint32_t op, a, b, c;
};

struct Match {
  size_t begin, end;
};

class Regex {
 public:
  Regex(Array<uint32_t> words, const std::vector<CharSet>& sets);
  // All matches from left to right, with Oniguruma's rule for empty ones.
  void find_all(std::string_view text, std::vector<Match>& out) const;

 private:
  const Instruction* code_;
  size_t size_;
  const std::vector<CharSet>* sets_;
};

// `sets` must outlive the result.
std::vector<Regex> read_regexes(Reader reader, const std::vector<CharSet>& sets);

}  // namespace specc::tok
