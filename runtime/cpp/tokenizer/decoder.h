// Token texts -> the text they say.
#pragma once

#include <string>
#include <vector>

#include "normalizer.h"
#include "vocabulary.h"

namespace specc::tok {

class Decoder {
 public:
  Decoder(Reader reader, const Shared& shared, const Vocabulary& vocabulary, bool byte_level);
  std::string decode(const int64_t* ids, size_t count, bool skip_special) const;

 private:
  struct Operation {
    uint32_t kind;
    const Regex* regex = nullptr;
    std::string what, with;
    uint32_t character = 0;
    uint32_t start = 0, stop = 0;
    bool drops_first = false;
  };
  static Operation read(Reader& reader, const Shared& shared);
  static void apply(const Operation& op, std::vector<std::string>& tokens);
  std::string text_of(uint32_t id) const;

  const Vocabulary& vocabulary_;
  bool byte_level_;
  bool spaced_;  // no decoder: tokens with spaces between them
  bool plain_bytes_;
  std::vector<Operation> operations_;
};

}  // namespace specc::tok
