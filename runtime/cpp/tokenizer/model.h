// The model: one piece of text -> token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "reader.h"
#include "vocabulary.h"

namespace specc::tok {

// What both models have in common.
struct ModelHeader {
  ModelHeader(Reader& reader, const Vocabulary& vocabulary);
  uint32_t kind;
  bool byte_level, byte_fallback, ignore_merges, fuse_unknown;
  uint32_t unknown;          // or kNone
  Array<uint32_t> byte_ids;  // the token of each byte, or kNone
};

class Model {
 public:
  virtual ~Model() = default;
  virtual void encode(std::string_view piece, std::vector<int64_t>& ids) const = 0;
};

std::unique_ptr<Model> read_model(Reader reader, const Vocabulary& vocabulary, bool& byte_level);

}  // namespace specc::tok
