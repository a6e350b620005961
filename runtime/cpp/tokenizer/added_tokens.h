// Added tokens: found in the text before the model sees it.
#pragma once

#include <string_view>
#include <vector>

#include "charset.h"
#include "trie.h"
#include "vocabulary.h"

namespace specc::tok {

// A stretch of text, or a token in its place.
struct Stretch {
  size_t begin, end;
  uint32_t id;  // kNone: text
};

class AddedTokens {
 public:
  AddedTokens(Reader reader, const std::vector<CharSet>& sets, const Vocabulary& vocabulary);
  // Cuts `text` at the tokens that match it as it was given (or as it is after normalization).
  std::vector<Stretch> cut(std::string_view text, bool normalized, bool parse_special) const;

 private:
  struct Token {
    uint32_t id;
    bool single_word, left_strip, right_strip, special;
  };
  bool is_word_at(std::string_view text, size_t at) const;

  std::vector<Token> tokens_;
  const CharSet* spaces_ = nullptr;
  const CharSet* words_ = nullptr;
  Trie exact_;
  Trie normalized_;
};

}  // namespace specc::tok
