#include "bpe.h"

#include <algorithm>

#include "hash.h"
#include "utf8.h"

namespace specc::tok {

Bpe::Bpe(Reader& reader, const ModelHeader& header, const Vocabulary& vocabulary)
    : header_(header), vocabulary_(vocabulary) {
  letters_ = reader.array<uint32_t>();
  letter_ids_ = reader.array<uint32_t>();
  longest_merge_probe_ = reader.u32();
  const auto merges = reader.array<uint32_t>();
  merges_ = reinterpret_cast<const Merge*>(merges.data);
  merge_slots_ = merges.size / 4;
  longest_word_probe_ = reader.u32();
  words_ = reader.array<uint32_t>();
  if (merges.size % 4 != 0 || longest_merge_probe_ > merge_slots_ || longest_word_probe_ > words_.size)
    damaged("the merges have no shape");
  check();
  for (uint32_t c = 0; c < ascii_ids_.size(); ++c) {
    const uint32_t* place = std::lower_bound(letters_.begin(), letters_.end(), c);
    const bool known = place != letters_.end() && *place == c;
    ascii_ids_[c] = known ? letter_ids_[static_cast<size_t>(place - letters_.begin())] : kNone;
  }
}

void Bpe::check() const {
  const uint32_t size = vocabulary_.size();
  if (letters_.size != letter_ids_.size) damaged("the letters have no shape");
  for (uint32_t id : letter_ids_)
    if (id >= size) damaged("a letter is missing");
  for (size_t i = 0; i < merge_slots_; ++i)
    if (merges_[i].left != kNone && merges_[i].id >= size) damaged("a merge gives no token");
  for (uint32_t id : words_)
    if (id != kNone && id >= size) damaged("a word is missing");
}

const Bpe::Merge* Bpe::find_merge(uint32_t left, uint32_t right) const {
  if (merge_slots_ == 0) return nullptr;
  size_t slot = first_slot(mix(uint64_t{left} << 32 | right), merge_slots_);
  for (uint32_t probe = 0; probe < longest_merge_probe_; ++probe) {
    const Merge& merge = merges_[slot];
    if (merge.left == left && merge.right == right) return &merge;
    if (merge.left == kNone) return nullptr;
    slot = slot + 1 < merge_slots_ ? slot + 1 : 0;
  }
  return nullptr;
}

uint32_t Bpe::find_word(std::string_view piece) const {
  if (words_.size == 0) return kNone;
  size_t slot = first_slot(hash_bytes(piece), words_.size);
  for (uint32_t probe = 0; probe < longest_word_probe_; ++probe) {
    const uint32_t id = words_[slot];
    if (id == kNone) return kNone;
    if (vocabulary_.bytes(id) == piece) return id;
    slot = slot + 1 < words_.size ? slot + 1 : 0;
  }
  return kNone;
}

uint32_t Bpe::letter(uint32_t c) const {
  if (c < ascii_ids_.size()) return ascii_ids_[c];
  const uint32_t* place = std::lower_bound(letters_.begin(), letters_.end(), c);
  return place != letters_.end() && *place == c ? letter_ids_[static_cast<size_t>(place - letters_.begin())] : kNone;
}

std::vector<Bpe::Symbol> Bpe::symbols_of(std::string_view piece) const {
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  const auto add = [&](uint32_t id) { symbols.push_back({id, 0, 0, false}); };
  // An unknown character waits, so that its neighbours may join it; tokens of bytes overtake it, as in `tokenizers`.
  bool waiting = false;
  for (size_t at = 0; at < piece.size();) {
    const CodePoint c = header_.byte_level ? CodePoint{static_cast<unsigned char>(piece[at]), 1} : decode(piece, at);
    const std::string_view bytes = piece.substr(at, c.bytes);
    at += c.bytes;
    const uint32_t id = header_.byte_level ? header_.byte_ids[c.value] : letter(c.value);
    if (id != kNone) {
      if (waiting) add(header_.unknown);
      waiting = false;
      add(id);
      continue;
    }
    const auto byte_id = [&](char byte) { return header_.byte_ids[static_cast<unsigned char>(byte)]; };
    if (header_.byte_fallback &&
        std::all_of(bytes.begin(), bytes.end(), [&](char byte) { return byte_id(byte) != kNone; })) {
      for (char byte : bytes) add(byte_id(byte));
      continue;
    }
    if (header_.unknown == kNone) continue;
    if (waiting && !header_.fuse_unknown) add(header_.unknown);
    waiting = true;
  }
  if (waiting) add(header_.unknown);
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[static_cast<size_t>(i)].previous = i - 1;
    symbols[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
  }
  return symbols;
}

void Bpe::merge_all(std::vector<Symbol>& symbols) const {
  std::vector<Candidate> queue;
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto find = [&](size_t left, size_t right) { return find_merge(symbols[left].id, symbols[right].id); };
  for (size_t i = 0; i + 1 < symbols.size(); ++i)
    if (const Merge* merge = find(i, i + 1)) queue.push_back({merge->rank, static_cast<uint32_t>(i), merge->id});
  std::make_heap(queue.begin(), queue.end(), later);
  const auto propose = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const Merge* merge = find(static_cast<size_t>(left), static_cast<size_t>(right));
    if (!merge) return;
    queue.push_back({merge->rank, static_cast<uint32_t>(left), merge->id});
    std::push_heap(queue.begin(), queue.end(), later);
  };
  while (!queue.empty()) {
    const Candidate best = queue.front();
    std::pop_heap(queue.begin(), queue.end(), later);
    queue.pop_back();
    Symbol& left = symbols[best.at];
    if (left.dead || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    const Merge* merge = find_merge(left.id, right.id);
    if (!merge || merge->id != best.id) continue;  // the pair is no longer what it was
    left.id = best.id;
    left.next = right.next;
    right.dead = true;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = static_cast<int32_t>(best.at);
    propose(left.previous, static_cast<int32_t>(best.at));
    propose(static_cast<int32_t>(best.at), left.next);
  }
}

void Bpe::encode(std::string_view piece, std::vector<int64_t>& ids) const {
  if (header_.ignore_merges) {
    const uint32_t id = find_word(piece);
    if (id != kNone) {
      ids.push_back(id);
      return;
    }
  }
  std::vector<Symbol> symbols = symbols_of(piece);
  if (symbols.size() > 1) merge_all(symbols);
  for (const Symbol& symbol : symbols)
    if (!symbol.dead) ids.push_back(symbol.id);
}

}  // namespace specc::tok
