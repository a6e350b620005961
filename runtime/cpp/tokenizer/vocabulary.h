// What every token id stands for, in one blob.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "reader.h"

namespace specc::tok {

class Vocabulary {
 public:
  explicit Vocabulary(Reader reader);
  uint32_t size() const { return static_cast<uint32_t>(flags_.size); }
  bool has(int64_t id) const { return id >= 0 && id < static_cast<int64_t>(flags_.size) && (flags_[id] & 1); }
  bool special(uint32_t id) const { return flags_[id] & 2; }
  // A byte-level vocabulary holds this token as text, since it is not written in the alphabet of bytes.
  bool raw(uint32_t id) const { return flags_[id] & 4; }
  std::string_view bytes(uint32_t id) const {
    return {reinterpret_cast<const char*>(blob_.data) + offsets_[id], offsets_[id + 1] - offsets_[id]};
  }

 private:
  Array<uint8_t> flags_;
  Array<uint32_t> offsets_;
  Array<uint8_t> blob_;
};

}  // namespace specc::tok
