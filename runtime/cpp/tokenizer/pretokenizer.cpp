#include "pretokenizer.h"

#include <algorithm>

#include "byte_alphabet.h"
#include "utf8.h"

namespace specc::tok {

namespace {

namespace splitting {
enum : uint32_t { kSplit = 1, kSplitSet, kPrefixSpace, kMetaspace, kBytes };
}

}  // namespace

PreTokenizer::Operation PreTokenizer::read(Reader& reader, const Shared& shared) {
  Operation op;
  op.kind = reader.u32();
  switch (op.kind) {
    case splitting::kSplit:
      op.regex = &shared.regexes[reader.below(static_cast<uint32_t>(shared.regexes.size()), "a pattern is missing")];
      op.behavior = static_cast<Behavior>(reader.below(5, "a split behavior is unknown"));
      op.invert = reader.flag();
      break;
    case splitting::kSplitSet:
      op.set = &shared.sets[reader.below(static_cast<uint32_t>(shared.sets.size()), "a character set is missing")];
      op.behavior = static_cast<Behavior>(reader.below(5, "a split behavior is unknown"));
      break;
    case splitting::kMetaspace:
      op.prepend = static_cast<Prepend>(reader.below(3, "a prepend scheme is unknown"));
      op.split = reader.flag();
      append(op.replacement, reader.below(0x110000, "a replacement is no character"));
      break;
    case splitting::kPrefixSpace:
    case splitting::kBytes:
      break;
    default:
      damaged("a pre-tokenizer is unknown");
  }
  return op;
}

PreTokenizer::PreTokenizer(Reader reader, const Shared& shared) {
  for (uint32_t count = reader.u32(); count > 0; --count) operations_.push_back(read(reader, shared));
  reader.finish();
}

void PreTokenizer::find(const Operation& op, std::string_view text, std::vector<Match>& matches) {
  if (op.regex) {
    op.regex->find_all(text, matches);
    return;
  }
  matches.clear();
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode(text, at);
    if (op.set ? op.set->has(c.value) : text.substr(at, c.bytes) == op.replacement) matches.push_back({at, at + c.bytes});
    at += c.bytes;
  }
}

// Neighbours that belong together become one, by the rules of `tokenizers`.
void PreTokenizer::merge(std::vector<Part>& parts, Behavior behavior) {
  const bool from_right = behavior == Behavior::kMergedWithNext;
  if (from_right) std::reverse(parts.begin(), parts.end());
  std::vector<Part> merged;
  bool previous = false;
  for (const Part& part : parts) {
    const bool joins = behavior == Behavior::kContiguous ? part.matched == previous : part.matched && !previous;
    if (!joins || merged.empty())
      merged.push_back(part);
    else if (from_right)
      merged.back().begin = part.begin;
    else
      merged.back().end = part.end;
    previous = part.matched;
  }
  if (from_right) std::reverse(merged.begin(), merged.end());
  parts = std::move(merged);
}

void PreTokenizer::cut(std::string_view text, const std::vector<Match>& matches, Behavior behavior, bool invert,
                       std::vector<Part>& parts) {
  parts.clear();
  size_t last = 0;
  for (const Match& match : matches) {
    if (last != match.begin) parts.push_back({last, match.begin, invert});
    parts.push_back({match.begin, match.end, !invert});
    last = match.end;
  }
  if (last != text.size()) parts.push_back({last, text.size(), invert});
  if (behavior == Behavior::kRemoved)
    parts.erase(std::remove_if(parts.begin(), parts.end(), [](const Part& p) { return p.matched; }), parts.end());
  else if (behavior != Behavior::kIsolated)
    merge(parts, behavior);
}

void PreTokenizer::split(const Operation& op, Pieces& pieces) {
  std::vector<Piece> result;
  std::vector<Match> matches;
  std::vector<Part> parts;
  for (const Piece& piece : pieces.list) {
    const std::string_view text = std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin);
    find(op, text, matches);
    cut(text, matches, op.behavior, op.invert, parts);
    for (const Part& part : parts)
      if (part.begin < part.end)
        result.push_back({piece.begin + part.begin, piece.begin + part.end, piece.at_origin && part.begin == 0});
  }
  pieces.list = std::move(result);
}

void PreTokenizer::rewrite(const Operation& op, Pieces& pieces) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.text.size() / 2);
  for (Piece& piece : pieces.list) {
    const std::string_view old = std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin);
    piece.begin = text.size();
    if (op.kind == splitting::kBytes) {
      for (char byte : old) append_byte_character(text, static_cast<uint8_t>(byte));
    } else if (op.kind == splitting::kPrefixSpace) {
      if (old[0] != ' ') text += ' ';
      text += old;
    } else {
      const bool present = old[0] == ' ' || old.substr(0, op.replacement.size()) == op.replacement;
      const bool wanted = op.prepend == Prepend::kAlways || (op.prepend == Prepend::kFirst && piece.at_origin);
      if (wanted && !present) text += op.replacement;
      for (char c : old) {
        if (c == ' ')
          text += op.replacement;
        else
          text += c;
      }
    }
    piece.end = text.size();
  }
  pieces.text = std::move(text);
}

void PreTokenizer::apply(Pieces& pieces) const {
  for (const Operation& op : operations_) {
    if (op.kind == splitting::kSplit || op.kind == splitting::kSplitSet) {
      split(op, pieces);
      continue;
    }
    rewrite(op, pieces);
    if (op.kind == splitting::kMetaspace && op.split) {
      Operation pieces_of_words = op;
      pieces_of_words.behavior = Behavior::kMergedWithNext;
      split(pieces_of_words, pieces);
    }
  }
}

}  // namespace specc::tok
