#include "weights.h"

#include <cstring>

namespace specc {

const WeightFormat& weight_format(const Encoding& encoding) {
  return encoding.quantised() ? kWeightsInteger : encoding.bits == 16 ? kWeightsBf16 : kWeightsF32;
}

void finish(const LinearCall& call, const float* sums, int64_t row, int64_t rows, int64_t tile, int tiles) {
  const int64_t first = tile * kTileColumns;
  const int64_t across = tiles * kTileColumns;
  const int64_t count = call.columns - first < across ? call.columns - first : across;
  for (int64_t r = 0; r < rows; r++) {
    float* y = call.y + (row + r) * call.columns + first;
    const float* from = sums + r * across;
    if (call.bias == nullptr) {
      std::memcpy(y, from, count * sizeof(float));
    } else {
      for (int64_t c = 0; c < count; c++) y[c] = from[c] + call.bias[first + c];
    }
  }
}

}  // namespace specc
