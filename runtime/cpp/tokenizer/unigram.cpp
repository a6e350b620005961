#include "unigram.h"

#include <algorithm>
#include <stdexcept>

#include "utf8.h"

namespace specc::tok {

namespace {

constexpr double kUnknownPenalty = 10.0;

}  // namespace

Unigram::Unigram(Reader& reader, const ModelHeader& header, const Vocabulary& vocabulary)
    : header_(header),
      unknown_score_(reader.f64() - kUnknownPenalty),
      scores_(reader.array<double>()),
      trie_(reader, static_cast<uint32_t>(scores_.size)) {
  if (scores_.size > vocabulary.size()) damaged("the scores have no shape");
}

std::vector<Unigram::Node> Unigram::best_path(std::string_view piece) const {
  std::vector<Node> nodes(piece.size() + 1, Node{0, 0, false, 0.0});
  const auto offer = [&](size_t begin, size_t end, double score, uint32_t id) {
    Node& node = nodes[end];
    const double sum = score + nodes[begin].score;
    if (!node.reached || sum > node.score) node = {begin, id, true, sum};
  };
  for (size_t begin = 0; begin < piece.size();) {
    const size_t next = begin + decode(piece, begin).bytes;
    bool single = false;
    uint32_t node = Trie::kRoot;
    for (size_t end = begin; end < piece.size();) {
      node = trie_.step(node, static_cast<uint8_t>(piece[end++]));
      if (node == kNone) break;
      const uint32_t id = trie_.value(node);
      if (id == kNone) continue;
      offer(begin, end, scores_[id], id);
      single = single || end == next;
    }
    if (!single) {
      if (header_.unknown == kNone)
        throw std::runtime_error("tokenizer: a character is not in the vocabulary, which has no unknown token");
      offer(begin, next, unknown_score_, header_.unknown);
    }
    begin = next;
  }
  return nodes;
}

// Neighbouring unknown characters count as one word; it may happen to be in the vocabulary.
void Unigram::say_unknown(std::string_view text, std::vector<int64_t>& ids) const {
  const uint32_t id = trie_.find(text);
  if (id != kNone) {
    ids.push_back(id);
    return;
  }
  const auto byte_id = [&](char byte) { return header_.byte_ids[static_cast<unsigned char>(byte)]; };
  if (header_.byte_fallback &&
      std::all_of(text.begin(), text.end(), [&](char byte) { return byte_id(byte) != kNone; })) {
    for (char byte : text) ids.push_back(byte_id(byte));
    return;
  }
  ids.push_back(header_.unknown);
}

void Unigram::encode(std::string_view piece, std::vector<int64_t>& ids) const {
  const std::vector<Node> nodes = best_path(piece);
  std::vector<std::pair<size_t, size_t>> path;  // from the right
  for (size_t end = piece.size(); end > 0;) {
    const Node& node = nodes[end];
    if (!node.reached || node.begin >= end) damaged("a token is not a text");
    path.emplace_back(node.begin, end);
    end = node.begin;
  }
  for (size_t i = path.size(); i > 0;) {
    const auto [begin, end] = path[--i];
    const uint32_t id = nodes[end].id;
    if (id != header_.unknown) {
      ids.push_back(id);
      continue;
    }
    size_t last = end;
    while (i > 0 && nodes[path[i - 1].second].id == header_.unknown) last = path[--i].second;
    say_unknown(piece.substr(begin, last - begin), ids);
  }
}

}  // namespace specc::tok
