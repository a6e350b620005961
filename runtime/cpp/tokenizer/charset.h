// Sets of code points: a bitmap for the common scripts, ranges for the rest.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "reader.h"

namespace specc::tok {

class CharSet {
 public:
  explicit CharSet(Array<uint32_t> bounds);  // low, high, low, high, ... ascending, inclusive
  bool has(uint32_t c) const {
    if (c < kDirect) return bits_[c >> 6] >> (c & 63) & 1;
    return has_far(c);
  }

 private:
  static constexpr uint32_t kDirect = 2048;
  bool has_far(uint32_t c) const;
  Array<uint32_t> bounds_;
  std::array<uint64_t, kDirect / 64> bits_{};
};

std::vector<CharSet> read_sets(Reader reader);

}  // namespace specc::tok
