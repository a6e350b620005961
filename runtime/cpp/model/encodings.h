// The ways matrices are stored, as ir/encodings.py has them: the same names in the same order, and the same layouts.
#pragma once
#include <cstdint>

#include "tensor.h"

namespace specc {

constexpr int64_t kTileColumns = 16;  // output features in a tile, the unit of packing and of threading
constexpr int64_t kBlock = 32;        // activations that share a scale, where weights are quantised

struct Encoding {
  const char* name;
  int bits;
  int group;  // neighbours of a row that share a scale; 0: the whole row
  bool minimum;

  bool quantised() const { return bits < 16; }
  // Blocks behind a line of scales: a power of two, or all of a row (ir/encodings.py).
  int64_t segment_blocks() const { return group == 0 ? INT64_MAX / 2 + 1 : group / kBlock * (minimum ? 1 : 2); }
  // Lines of scales in a tile before this block, its own left out.
  int64_t lines_before(int64_t block) const {
    return block / segment_blocks() + (block % segment_blocks() != 0);
  }
  int64_t tile_bytes(int64_t depth) const {
    const int64_t numbers = depth * kTileColumns * bits / 8;
    return numbers + (quantised() ? lines_before(depth / kBlock) * 64 : 0);
  }
};

// nullptr, with the error text set, for a name or number that is not in the table.
const Encoding* find_encoding(const char* name);
const Encoding* find_encoding(int64_t number);

// Whether `packed` holds a matrix [rows, depth] in this encoding; else false with the error text set.
bool expect_packed(const char* who, const Encoding& encoding, const Tensor& packed, int64_t rows, int64_t depth);

}  // namespace specc
