#include "charset.h"

#include <algorithm>

namespace specc::tok {

CharSet::CharSet(Array<uint32_t> bounds) : bounds_(bounds) {
  if (bounds.size % 2 != 0) damaged("a character set has half a range");
  uint32_t next = 0;
  for (size_t i = 0; i < bounds.size; i += 2) {
    const uint32_t low = bounds[i], high = bounds[i + 1];
    if (low < next || high < low || high > 0x10FFFF) damaged("a character set is out of order");
    next = high + 1;
    for (uint32_t c = low; c <= high && c < kDirect; ++c) bits_[c >> 6] |= uint64_t{1} << (c & 63);
  }
}

bool CharSet::has_far(uint32_t c) const {
  // The first bound above c closes a range exactly when c is inside; a high bound equal to c is inside too.
  const uint32_t* bound = std::upper_bound(bounds_.begin(), bounds_.end(), c);
  const auto index = static_cast<size_t>(bound - bounds_.begin());
  return index % 2 == 1 || (index > 0 && bounds_[index - 1] == c);
}

std::vector<CharSet> read_sets(Reader reader) {
  std::vector<CharSet> sets;
  for (uint32_t count = reader.u32(); count > 0; --count) sets.emplace_back(reader.array<uint32_t>());
  reader.finish();
  return sets;
}

}  // namespace specc::tok
