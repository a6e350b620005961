// The operators on packed matrices, and the kernels that they choose from: one WeightFormat for each way to compute.
//
// Whatever the encoding, an output element must come from one accumulation order that depends on nothing but K: not on
// the rows of the call, the tiles a thread gets, the number of threads or the ISA.
#pragma once
#include <cstdint>

#include "encodings.h"
#include "tensor.h"

namespace specc {

struct LinearCall {
  const Encoding& encoding;
  const float* x;  // [rows, depth], rows `x_stride` apart
  int64_t rows, depth, x_stride;
  const char* weights;  // all tiles
  const float* bias;    // [columns] or null
  float* y;             // [rows, columns], contiguous
  int64_t columns;
  char* scratch;  // what `prepare` filled
};

struct WeightFormat {
  int together;  // tiles that kernels take at once
  // Bytes that the call's rows take in another form, 0 if they are used as they are; and the filling of rows [begin, end).
  int64_t (*scratch_bytes)(const LinearCall& call);
  void (*prepare)(const LinearCall& call, int64_t begin, int64_t end);
  // Computes the columns of tiles [begin, end) for all rows.
  void (*linear)(const LinearCall& call, int64_t begin, int64_t end);
  // Unpacks one row of the matrix [.., depth], i.e. the weights of one output feature.
  void (*unpack_row)(const Encoding& encoding, const char* weights, int64_t depth, int64_t row, float* out);
};

extern const WeightFormat kWeightsF32, kWeightsBf16;  // weights_float.cpp
extern const WeightFormat kWeightsInteger;             // weights_integer.cpp

// Writes sums [rows][tiles * 16] of neighbouring tiles to y, with the bias. For formats.
void finish(const LinearCall& call, const float* sums, int64_t row, int64_t rows, int64_t tile, int tiles);

const WeightFormat& weight_format(const Encoding& encoding);

// The operators. The result is a new tensor, or nullptr with the error text set (also for a null encoding).
Tensor* linear(const Tensor& x, const Tensor& packed, const Tensor* bias, int64_t columns, const Encoding* encoding);
Tensor* embedding(const Tensor& tokens, const Tensor& packed, int64_t rows, int64_t depth, const Encoding* encoding);

}  // namespace specc
