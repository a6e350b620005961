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
  int64_t scales_per_row(int64_t depth) const { return group == 0 ? 1 : depth / group; }
  // Bytes of a tile: scales and minima, filled up to a cache line, and all.
  int64_t header_bytes(int64_t depth) const {
    return (scales_per_row(depth) * (minimum ? 2 : 1) * kTileColumns * 2 + 63) / 64 * 64;
  }
  int64_t tile_bytes(int64_t depth) const {
    const int64_t numbers = depth * kTileColumns * bits / 8;
    return quantised() ? header_bytes(depth) + numbers : numbers;
  }
};

// nullptr, with the error text set, for a name or number that is not in the table.
const Encoding* find_encoding(const char* name);
const Encoding* find_encoding(int64_t number);

// Whether `packed` holds a matrix [rows, depth] in this encoding; else false with the error text set.
bool expect_packed(const char* who, const Encoding& encoding, const Tensor& packed, int64_t rows, int64_t depth);

}  // namespace specc
