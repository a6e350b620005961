// Packed weight matrices. Each format is one file that fills one WeightFormat; the operators know no format by name.
//
// A format is recognised by the packed tensor's dtype and shape alone, so scales and the like must lie inside the tile
// they belong to. Whatever the format, an output element must come from one accumulation order that depends on nothing
// but K: not on the rows of the call, the tiles a thread gets, the number of threads or the ISA.
#pragma once
#include <cstdint>

#include "tensor.h"

namespace specc {

constexpr int64_t kTileColumns = 16;  // output features in a tile, the unit of packing and of threading

struct LinearCall {
  const float* x;  // [rows, depth], rows `x_stride` apart
  int64_t rows, depth, x_stride;
  const void* weights;  // all tiles
  const float* bias;    // [columns] or null
  float* y;             // [rows, columns], contiguous
  int64_t columns;
};

struct WeightFormat {
  const char* name;
  bool (*recognises)(const Tensor& packed);
  int64_t (*depth)(const Tensor& packed);
  // Computes the columns of tiles [begin, end) for all rows.
  void (*linear)(const LinearCall& call, int64_t begin, int64_t end);
  // Unpacks one row of the matrix, i.e. the weights of one output feature.
  void (*unpack_row)(const Tensor& packed, int64_t row, float* out);
};

extern const WeightFormat kWeightsF32;  // [tiles][K][16] f32

// nullptr, with the error text set, if no format knows the tensor.
const WeightFormat* find_weight_format(const Tensor& packed);

// The operators. The result is a new tensor, or nullptr with the error text set.
Tensor* linear(const Tensor& x, const Tensor& packed, const Tensor* bias, int64_t columns);
Tensor* embedding(const Tensor& tokens, const Tensor& packed, int64_t rows);

}  // namespace specc
