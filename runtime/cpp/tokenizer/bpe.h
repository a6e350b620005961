// Byte pair encoding: the pair with the best rank is merged first, the leftmost of equals first.
#pragma once

#include <array>

#include "model.h"

namespace specc::tok {

class Bpe : public Model {
 public:
  Bpe(Reader& reader, const ModelHeader& header, const Vocabulary& vocabulary);
  void encode(std::string_view piece, std::vector<int64_t>& ids) const override;

 private:
  struct Merge {
    uint32_t left, right, rank, id;
  };
  struct Symbol {
    uint32_t id;
    int32_t previous, next;
    bool dead;
  };
  struct Candidate {
    uint32_t rank, at, id;
  };

  void check() const;
  const Merge* find_merge(uint32_t left, uint32_t right) const;
  uint32_t find_word(std::string_view piece) const;
  uint32_t letter(uint32_t c) const;
  std::vector<Symbol> symbols_of(std::string_view piece) const;
  void merge_all(std::vector<Symbol>& symbols) const;

  ModelHeader header_;
  const Vocabulary& vocabulary_;
  Array<uint32_t> letters_;
  Array<uint32_t> letter_ids_;
  std::array<uint32_t, 128> ascii_ids_;
  uint32_t longest_merge_probe_;
  const Merge* merges_;
  size_t merge_slots_;
  uint32_t longest_word_probe_;
  Array<uint32_t> words_;
};

}  // namespace specc::tok
