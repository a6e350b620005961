// Where a session's buffers lie: one mapping, with zones apart from each other and guards between buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "json_cursor.h"

namespace specc {

struct StateSpec {
  std::string name;
  int32_t dtype = 0;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  bool by_position = false;  // shape[1] counts positions of texts

  // For texts of so many positions.
  std::vector<int64_t> shape_at(int64_t rows) const;
  int64_t bytes_at(int64_t rows) const;
};

struct Placed {
  size_t buffer;   // index into the state
  int64_t offset;  // in the arena
};

struct ZoneSpec {
  std::string name;
  int64_t offset = 0, bytes = 0;
  std::vector<Placed> buffers;  // ascending
};

// A layout for texts of up to `rows` positions.
struct ArenaPlan {
  int64_t rows = 0, bytes = 0;
  std::vector<ZoneSpec> zones;
};

struct ArenaSpec {
  int64_t page = 4096;   // before and after each zone, which nobody may touch
  int64_t canary = 128;  // before and after each buffer, which nobody should write
  std::vector<ArenaPlan> plans;  // the shortest texts first
};

// Checks that what is placed lies apart. `field`: of the manifest, absent in artifacts of before, whose buffers get one
// zone. `rows`: positions of all texts.
ArenaSpec read_arena(const std::optional<JsonCursor>& field, const std::vector<StateSpec>& state, int64_t rows);

}  // namespace specc
