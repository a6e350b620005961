// Tables from a code point to a few others.
#pragma once

#include <cstdint>

#include "reader.h"

namespace specc::tok {

class CharMap {
 public:
  CharMap() = default;
  explicit CharMap(Reader& reader);
  struct Target {
    const uint32_t* data;
    uint32_t size;
  };
  // False if `c` stays itself.
  bool find(uint32_t c, Target& target) const;

 private:
  Array<uint32_t> points_;
  Array<uint32_t> offsets_;
  Array<uint32_t> targets_;
};

void check_points(const Array<uint32_t>& points, bool ascending);

}  // namespace specc::tok
