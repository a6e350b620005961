// Byte strings -> numbers, for finding the words that begin at a place in the text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "reader.h"

namespace specc::tok {

class Trie {
 public:
  Trie() = default;
  Trie(Reader& reader, uint32_t values);  // every value is below `values`

  static constexpr uint32_t kRoot = 0;
  bool empty() const { return labels_.size <= 1; }
  // The child of `node` along `label`, or kNone.
  uint32_t step(uint32_t node, uint8_t label) const {
    const uint8_t* first = labels_.data + first_[node];
    const uint8_t* last = labels_.data + first_[node + 1];
    const uint8_t* child = std::lower_bound(first, last, label);
    return child != last && *child == label ? static_cast<uint32_t>(child - labels_.data) : kNone;
  }
  uint32_t value(uint32_t node) const { return values_[node]; }
  uint32_t find(std::string_view word) const;

 private:
  Array<uint8_t> labels_;
  Array<uint32_t> values_;
  Array<uint32_t> first_;
};

}  // namespace specc::tok
