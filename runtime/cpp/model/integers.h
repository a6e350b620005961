// Products of quantised weights with activations that are quantised as they come: integers in the middle, floats around.
//
// For each block of 32 columns in order, y = fma(dot * scale, d, y), where dot is the exact product of a row's integers
// with a column's, and scale, d their scales; then y = fma(sum * scale, m, y) where the encoding has minima. Integers
// may be added in any order, so each instruction set takes its own way and all give the same bits (`ir/products.py`).
#pragma once
#include <cstdint>

#include "encodings.h"

namespace specc {

constexpr int64_t kPanelRows = 8;     // that a kernel takes at most
constexpr int64_t kChunkBlocks = 24;  // whose weights stay in L1 while all rows pass over them; whole segments

// The call's rows as integers, panel after panel of kPanelRows (the last may have fewer), and in a panel block after block:
// one stream for a kernel.
struct QuantisedRows {
  int8_t* integers;    // [panel's rows][32]
  float* scales;       // [panel's rows]; so are the others:
  int32_t* starts;     // the block's sum times what the weights' integers have too much, negated: where a dot product starts
  float* scaled_sums;  // the block's sum * scale
  int64_t step;        // bytes from block to block

  static constexpr int64_t kRowBytes = kBlock + sizeof(float) + sizeof(int32_t) + sizeof(float);  // of a block
  static int64_t bytes(int64_t rows, int64_t depth) { return rows * depth / kBlock * kRowBytes; }
  // Of a call of `rows` rows of `depth` in `memory`, from this row and block on.
  static QuantisedRows at(char* memory, int64_t rows, int64_t depth, int64_t row, int64_t block) {
    const int64_t first = row / kPanelRows * kPanelRows;
    const int64_t across = rows - first < kPanelRows ? rows - first : kPanelRows;
    char* const panel = memory + bytes(first, depth) + block * across * kRowBytes;
    float* const scales = reinterpret_cast<float*>(panel + across * kBlock) + (row - first);
    return {reinterpret_cast<int8_t*>(panel) + (row - first) * kBlock, scales,
            reinterpret_cast<int32_t*>(scales + across), scales + 2 * across, across * kRowBytes};
  }
  void next_block() {
    integers += step;
    scales += step / 4;
    starts += step / 4;
    scaled_sums += step / 4;
  }
};

// Fills the row that `to` is the first block of. `excess`: what is added to the weights' integers where they are stored.
void quantise_row(const float* x, int64_t depth, int excess, QuantisedRows to);

// Some blocks of one tile, or of two neighbours, for some rows.
struct IntegerPanel {
  const char* weights;     // the first block, or the line of scales before it
  const uint16_t* scales;  // the line that is in force until another comes
  int64_t segment_mask;    // blocks of which these bits are 0 have a line of scales before them
  int group_shift;         // block >> group_shift is its group,
  int64_t pair_mask;       // of which these bits say where in the line it is
  bool minimum;
  int64_t first_block, blocks;
  QuantisedRows x;  // from the panel's first row and block
  float* y;             // [rows][16], carried on
  int64_t tile_stride;  // bytes from a tile to its neighbour; its sums are `y_stride` floats on
  int64_t y_stride;
  int64_t lead;         // bytes from what is read to what is prefetched; 0: nothing is
  int64_t lead_begin, lead_end;  // of two tiles: the blocks where it is
};

using IntegerKernel = void (*)(const IntegerPanel& panel);

// The kernels of one instruction set.
struct IntegerKernels {
  const char* name;
  bool (*runs_here)();
  int max_rows;
  IntegerKernel (*find)(int bits, int64_t rows);
  IntegerKernel (*find_pair)(int bits, int64_t rows);  // of two tiles, for calls of more than max_rows; or null
};

extern const IntegerKernels kIntegersVnni, kIntegersAvx2, kIntegersPlain;
extern const IntegerKernels* const kIntegerKernels[];  // best first; the last runs anywhere
extern const int kIntegerKernelsCount;
extern const IntegerKernels* integer_kernels;  // the best that run on this machine, whatever the ISA of the build

float half_to_float(uint16_t bits);

}  // namespace specc
