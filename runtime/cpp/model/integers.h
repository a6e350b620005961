// Products of quantised weights with activations that are quantised as they come: integers in the middle, floats around.
//
// For each block of 32 columns in order, y = fma(dot * scale, d, y), where dot is the exact product of a row's integers
// with a column's, and scale, d their scales; then y = fma(sum * scale, m, y) where the encoding has minima. Integers
// may be added in any order, so each instruction set takes its own way and all give the same bits (`ir/products.py`).
#pragma once
#include <cstdint>

#include "encodings.h"

namespace specc {

constexpr int64_t kChunkBlocks = 24;  // that all rows pass over while their weights are in L1; whole segments

// The call's rows as integers. Block after block, as kernels go through them, so that the rows of a panel are at fixed
// distances from one pointer.
struct QuantisedRows {
  int8_t* integers;    // [blocks][rows][32]
  float* scales;       // [blocks][rows]; so are the others:
  int32_t* starts;     // the block's sum times what the weights' integers have too much, negated: where a dot product starts
  float* scaled_sums;  // the block's sum * scale
  int64_t rows;

  static int64_t bytes(int64_t rows, int64_t depth) { return rows * depth / kBlock * (kBlock + 12); }
  static QuantisedRows in(char* memory, int64_t rows, int64_t depth) {
    float* scales = reinterpret_cast<float*>(memory + rows * depth);
    const int64_t count = rows * depth / kBlock;
    return {reinterpret_cast<int8_t*>(memory), scales, reinterpret_cast<int32_t*>(scales + count), scales + 2 * count,
            rows};
  }
  // The same from this row and block on.
  QuantisedRows from(int64_t row, int64_t block) const {
    const int64_t i = block * rows + row;
    return {integers + i * kBlock, scales + i, starts + i, scaled_sums + i, rows};
  }
  void next_block() { *this = from(0, 1); }
};

// Fills a row. `excess`: what is added to the weights' integers where they are stored.
void quantise_row(const float* x, int64_t depth, int excess, QuantisedRows rows, int64_t row);

// Some blocks of one tile for some rows.
struct IntegerPanel {
  const char* weights;     // the first block, or the line of scales before it
  const uint16_t* scales;  // the line that is in force until another comes
  int64_t segment_mask;    // blocks of which these bits are 0 have a line of scales before them
  int group_shift;         // block >> group_shift is its group,
  int64_t pair_mask;       // of which these bits say where in the line it is
  bool minimum;
  int64_t first_block, blocks;
  QuantisedRows x;  // from the panel's first row and block
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
