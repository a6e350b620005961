// Products of quantised weights with activations that are quantised as they come: integers in the middle, floats around.
//
// For each block of 32 columns in order, y = fma(dot * scale, d, y), where dot is the exact product of a row's integers
// with a column's, and scale, d their scales; then y = fma(sum * scale, m, y) where the encoding has minima. Integers
// may be added in any order, so each instruction set takes its own way and all give the same bits (`ir/products.py`).
#pragma once
#include <cstdint>

namespace specc {

constexpr int64_t kChunkBlocks = 8;  // that all rows pass over while their weights are in L1; whole segments

// A row of activations: integers [K], then for each block its scale, its sum and sum * scale.
struct QuantisedRows {
  const char* base;
  int64_t stride;  // bytes between rows
  int64_t depth;

  const int8_t* integers(int64_t row) const { return reinterpret_cast<const int8_t*>(base + row * stride); }
  const float* scales(int64_t row) const { return reinterpret_cast<const float*>(base + row * stride + depth); }
  const int32_t* sums(int64_t row) const {
    return reinterpret_cast<const int32_t*>(base + row * stride + depth + depth / 8);
  }
  const float* scaled_sums(int64_t row) const {
    return reinterpret_cast<const float*>(base + row * stride + depth + depth / 4);
  }
  static int64_t bytes_of_row(int64_t depth) { return (depth + depth / 8 * 3 + 63) / 64 * 64; }
};

void quantise_row(const float* x, int64_t depth, char* row);

// Some blocks of one tile for some rows.
struct IntegerPanel {
  const char* weights;     // the first block, or the line of scales before it
  const uint16_t* scales;  // the line that is in force until another comes
  int64_t segment_mask;    // blocks of which these bits are 0 have a line of scales before them
  int group_shift;         // block >> group_shift is its group,
  int64_t pair_mask;       // of which these bits say where in the line it is
  bool minimum;
  int64_t first_block, blocks;
  QuantisedRows x;  // from the panel's first row
  float* y;         // [rows][16], carried on
  int64_t lead;     // bytes from what is read to what is prefetched; 0: nothing is
};

using IntegerKernel = void (*)(const IntegerPanel& panel);

// The kernels of one instruction set.
struct IntegerKernels {
  const char* name;
  bool (*runs_here)();
  int max_rows;
  IntegerKernel (*find)(int bits, int64_t rows);
};

extern const IntegerKernels kIntegersVnni, kIntegersAvx2, kIntegersPlain;
extern const IntegerKernels* const kIntegerKernels[];  // best first; the last runs anywhere
extern const int kIntegerKernelsCount;
extern const IntegerKernels* integer_kernels;  // the best that run on this machine, whatever the ISA of the build

float half_to_float(uint16_t bits);

}  // namespace specc
