#include "charmap.h"

#include <algorithm>

namespace specc::tok {

void check_points(const Array<uint32_t>& points, bool ascending) {
  for (size_t i = 0; i < points.size; ++i) {
    if (points[i] > 0x10FFFF || (points[i] >= 0xD800 && points[i] < 0xE000)) damaged("a table holds no character");
    if (ascending && i > 0 && points[i] <= points[i - 1]) damaged("a table is out of order");
  }
}

CharMap::CharMap(Reader& reader)
    : points_(reader.array<uint32_t>()), offsets_(reader.array<uint32_t>()), targets_(reader.array<uint32_t>()) {
  check_points(points_, true);
  check_points(targets_, false);
  if (offsets_.size != points_.size + 1) damaged("a table has no shape");
  for (size_t i = 0; i < points_.size; ++i)
    if (offsets_[i] > offsets_[i + 1] || offsets_[i + 1] > targets_.size) damaged("a table is out of order");
}

bool CharMap::find(uint32_t c, Target& target) const {
  const uint32_t* place = std::lower_bound(points_.begin(), points_.end(), c);
  if (place == points_.end() || *place != c) return false;
  const auto index = static_cast<size_t>(place - points_.begin());
  target = {targets_.data + offsets_[index], offsets_[index + 1] - offsets_[index]};
  return true;
}

}  // namespace specc::tok
