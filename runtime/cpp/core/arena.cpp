#include "arena.h"

#include <algorithm>

#include "dtype.h"

namespace specc {
namespace {

constexpr int64_t kAlignment = 64;

int64_t up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// Everything in one zone.
ArenaPlan one_zone(const ArenaSpec& arena, const std::vector<StateSpec>& state, int64_t rows) {
  ZoneSpec zone{"state", arena.page, 0, {}};
  int64_t at = arena.page + arena.canary;
  for (size_t i = 0; i < state.size(); ++i) {
    zone.buffers.push_back({i, at});
    at = up(at + state[i].bytes, kAlignment) + arena.canary;
  }
  zone.bytes = up(at - zone.offset, arena.page);
  return {rows, zone.offset + zone.bytes + arena.page, {std::move(zone)}};
}

size_t index_of(const JsonCursor& field, const std::string& name, const std::vector<StateSpec>& state) {
  const auto found = std::find_if(state.begin(), state.end(), [&](const auto& buffer) { return buffer.name == name; });
  if (found == state.end()) field.fail("a zone holds a buffer that there is not");
  return static_cast<size_t>(found - state.begin());
}

ZoneSpec read_zone(const JsonCursor& field, const std::vector<StateSpec>& state) {
  ZoneSpec zone{field.at("name").string(), field.at("offset").integer(1, kMaxBytes),
                field.at("bytes").integer(1, kMaxBytes), {}};
  for (const auto& entry : field.at("buffers").entries()) {
    zone.buffers.push_back({index_of(entry.value, entry.key, state), entry.value.integer(1, kMaxBytes)});
  }
  std::sort(zone.buffers.begin(), zone.buffers.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  return zone;
}

// Zones ascend, a page apart; the buffers of each ascend, a canary apart; and every buffer is in one.
void check_plan(const JsonCursor& field, const ArenaSpec& arena, const ArenaPlan& plan,
                const std::vector<StateSpec>& state) {
  std::vector<int> placed(state.size(), 0);
  int64_t free = 0;
  for (const ZoneSpec& zone : plan.zones) {
    if (zone.offset % arena.page != 0 || zone.bytes % arena.page != 0) field.fail("a zone is no whole pages");
    if (zone.offset < free + arena.page) field.fail("zones overlap, or have no page between them");
    free = zone.offset + zone.bytes;
    int64_t inside = zone.offset;
    for (const Placed& each : zone.buffers) {
      if (each.offset % kAlignment != 0) field.fail("a buffer is not aligned");
      if (each.offset < inside + arena.canary) field.fail("buffers overlap, or have no guard between them");
      inside = each.offset + state[each.buffer].bytes_at(plan.rows);
      ++placed[each.buffer];
    }
    if (inside + arena.canary > free) field.fail("a buffer leaves its zone");
  }
  if (free + arena.page > plan.bytes) field.fail("a zone leaves the arena");
  if (std::any_of(placed.begin(), placed.end(), [](int times) { return times != 1; })) {
    field.fail("a buffer has no place, or two");
  }
}

}  // namespace

std::vector<int64_t> StateSpec::shape_at(int64_t rows) const {
  std::vector<int64_t> found = shape;
  if (by_position) found[1] = rows;
  return found;
}

int64_t StateSpec::bytes_at(int64_t rows) const {
  return by_position && shape[1] > 0 ? bytes / shape[1] * rows : bytes;
}

ArenaSpec read_arena(const std::optional<JsonCursor>& field, const std::vector<StateSpec>& state, int64_t rows) {
  ArenaSpec arena;
  if (!field) {
    arena.plans.push_back(one_zone(arena, state, rows));
    return arena;
  }
  const JsonCursor guard = field->at("guard");
  arena.page = guard.at("page").integer(4096, 1 << 21);
  arena.canary = guard.at("canary").integer(kAlignment, 1 << 16);
  if ((arena.page & (arena.page - 1)) != 0 || arena.canary % kAlignment != 0) guard.fail("guards of odd sizes");
  for (const auto& item : field->at("plans").items()) {
    ArenaPlan plan{item.at("rows").integer(1, rows), item.at("bytes").integer(1, kMaxBytes), {}};
    for (const auto& zone : item.at("zones").items()) plan.zones.push_back(read_zone(zone, state));
    check_plan(item, arena, plan, state);
    if (!arena.plans.empty() && plan.rows <= arena.plans.back().rows) item.fail("plans must ascend");
    arena.plans.push_back(std::move(plan));
  }
  if (arena.plans.empty() || arena.plans.back().rows != rows) field->fail("no plan holds the whole context");
  return arena;
}

}  // namespace specc
