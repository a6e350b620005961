#include "added_tokens.h"

#include <algorithm>

#include "utf8.h"

namespace specc::tok {

AddedTokens::AddedTokens(Reader reader, const std::vector<CharSet>& sets, const Vocabulary& vocabulary) {
  const auto set_count = static_cast<uint32_t>(sets.size());
  const uint32_t spaces = reader.below_or_none(set_count, "a character set is missing");
  const uint32_t words = reader.below_or_none(set_count, "a character set is missing");
  if (spaces != kNone) spaces_ = &sets[spaces];
  if (words != kNone) words_ = &sets[words];
  for (uint32_t count = reader.u32(); count > 0; --count) {
    const uint32_t id = reader.below(vocabulary.size(), "an added token is missing");
    const uint32_t flags = reader.below(16, "a flag of an added token is unknown");
    const Token token{id, (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, (flags & 8) != 0};
    if ((token.single_word && !words_) || ((token.left_strip || token.right_strip) && !spaces_))
      damaged("a character set is missing");
    tokens_.push_back(token);
  }
  exact_ = Trie(reader, static_cast<uint32_t>(tokens_.size()));
  normalized_ = Trie(reader, static_cast<uint32_t>(tokens_.size()));
  if (exact_.value(Trie::kRoot) != kNone || normalized_.value(Trie::kRoot) != kNone) damaged("an added token is empty");
  reader.finish();
}

bool AddedTokens::is_word_at(std::string_view text, size_t at) const { return words_->has(decode(text, at).value); }

std::vector<Stretch> AddedTokens::cut(std::string_view text, bool normalized, bool parse_special) const {
  const Trie& trie = normalized ? normalized_ : exact_;
  if (trie.empty() || text.empty()) return {{0, text.size(), kNone}};
  std::vector<Stretch> result;
  size_t done = 0;  // end of the last token found, with the spaces it took
  for (size_t at = 0; at < text.size();) {
    // The longest token that begins here; the search goes on behind it even if it does not count.
    uint32_t found = kNone;
    size_t begin = at, end = at;
    uint32_t node = Trie::kRoot;
    for (size_t i = at; i < text.size();) {
      node = trie.step(node, static_cast<uint8_t>(text[i++]));
      if (node == kNone) break;
      if (trie.value(node) == kNone) continue;
      found = trie.value(node);
      end = i;
    }
    if (found == kNone) {
      ++at;
      continue;
    }
    at = end;
    const Token& token = tokens_[found];
    if (token.special && !parse_special) continue;
    if (token.single_word && ((begin > 0 && is_word_at(text, previous(text, begin))) ||
                              (end < text.size() && is_word_at(text, end))))
      continue;
    if (token.left_strip) {
      while (begin > 0 && spaces_->has(decode(text, previous(text, begin)).value)) begin = previous(text, begin);
      begin = std::max(begin, done);
    }
    while (token.right_strip && end < text.size()) {
      const CodePoint c = decode(text, end);
      if (!spaces_->has(c.value)) break;
      end += c.bytes;
    }
    if (done < begin) result.push_back({done, begin, kNone});
    result.push_back({begin, end, token.id});
    done = end;
  }
  if (done != text.size()) result.push_back({done, text.size(), kNone});
  return result;
}

}  // namespace specc::tok
