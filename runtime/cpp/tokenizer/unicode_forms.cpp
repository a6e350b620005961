#include "unicode_forms.h"

#include <algorithm>

#include "utf8.h"

namespace specc::tok {

namespace {

// Hangul syllables are computed, not stored (Unicode, chapter 3.12).
constexpr uint32_t kS = 0xAC00, kL = 0x1100, kV = 0x1161, kT = 0x11A7;
constexpr uint32_t kLs = 19, kVs = 21, kTs = 28, kSs = kLs * kVs * kTs;

}  // namespace

UnicodeForms::UnicodeForms(Reader reader)
    : canonical_(reader),
      compatible_(reader),
      marks_(reader.array<uint32_t>()),
      classes_(reader.array<uint8_t>()),
      pairs_(reader.array<uint32_t>()) {
  reader.finish();
  check_points(marks_, true);
  check_points(pairs_, false);
  if (classes_.size != marks_.size || pairs_.size % 3 != 0) damaged("the Unicode tables have no shape");
}

uint32_t UnicodeForms::klass(uint32_t c) const {
  if (c < 0x300) return 0;
  const uint32_t* place = std::lower_bound(marks_.begin(), marks_.end(), c);
  return place != marks_.end() && *place == c ? classes_[static_cast<size_t>(place - marks_.begin())] : 0;
}

void UnicodeForms::decompose(std::vector<Unit>& out, uint32_t c, bool compatible) const {
  if (c >= kS && c < kS + kSs) {
    const uint32_t s = c - kS;
    out.push_back({kL + s / (kVs * kTs), 0});
    out.push_back({kV + s % (kVs * kTs) / kTs, 0});
    if (s % kTs != 0) out.push_back({kT + s % kTs, 0});
    return;
  }
  CharMap::Target target;
  if (c >= 0xA0 && (compatible ? compatible_ : canonical_).find(c, target)) {
    for (uint32_t i = 0; i < target.size; ++i) out.push_back({target.data[i], klass(target.data[i])});
  } else {
    out.push_back({c, klass(c)});
  }
}

uint32_t UnicodeForms::compose(uint32_t first, uint32_t second) const {
  if (first >= kL && first < kL + kLs && second >= kV && second < kV + kVs)
    return kS + ((first - kL) * kVs + (second - kV)) * kTs;
  if (first >= kS && first < kS + kSs && (first - kS) % kTs == 0 && second > kT && second < kT + kTs)
    return first + (second - kT);
  size_t low = 0, high = pairs_.size / 3;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const uint32_t* pair = pairs_.data + 3 * middle;
    if (pair[0] < first || (pair[0] == first && pair[1] < second))
      low = middle + 1;
    else
      high = middle;
  }
  const uint32_t* pair = pairs_.data + 3 * low;
  return low < pairs_.size / 3 && pair[0] == first && pair[1] == second ? pair[2] : kNone;
}

void UnicodeForms::compose_all(std::vector<Unit>& units) const {
  size_t starter = SIZE_MAX;
  size_t kept = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const Unit unit = units[i];
    if (starter != SIZE_MAX) {
      // Blocked if something of the same or a higher class (or a starter) stands between.
      const bool adjacent = kept == starter + 1;
      if (adjacent || (units[kept - 1].klass != 0 && units[kept - 1].klass < unit.klass)) {
        const uint32_t whole = compose(units[starter].point, unit.point);
        if (whole != kNone) {
          units[starter].point = whole;
          continue;
        }
      }
    }
    if (unit.klass == 0) starter = kept;
    units[kept++] = unit;
  }
  units.resize(kept);
}

std::string UnicodeForms::normalize(std::string_view text, Form form) const {
  if (is_ascii(text)) return std::string(text);
  const bool compatible = form == Form::kNfkc || form == Form::kNfkd;
  std::vector<Unit> units;
  units.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode(text, at);
    decompose(units, c.value, compatible);
    at += c.bytes;
  }
  for (size_t i = 0; i < units.size();) {
    size_t end = i + 1;
    if (units[i].klass != 0) {
      while (end < units.size() && units[end].klass != 0) ++end;
      std::stable_sort(units.begin() + static_cast<std::ptrdiff_t>(i), units.begin() + static_cast<std::ptrdiff_t>(end),
                       [](const Unit& a, const Unit& b) { return a.klass < b.klass; });
    }
    i = end;
  }
  if (form == Form::kNfc || form == Form::kNfkc) compose_all(units);
  std::string result;
  result.reserve(text.size());
  for (const Unit& unit : units) append(result, unit.point);
  return result;
}

}  // namespace specc::tok
