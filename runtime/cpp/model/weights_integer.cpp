// Weights of 8 and 4 bits in tiles of 16 output features: [tiles][scales, then integers] (ir/encodings.py).
//
// Rows are quantised once for the call. Then, as with floats, a tile is read in chunks that stay in L1 while all rows
// pass over them, and meanwhile the next chunk is prefetched.
#include <cstring>

#include "integers.h"
#include "weights.h"

namespace specc {
namespace {

constexpr int64_t kGroupRows = 96;  // rows per pass over the weights: their sums and integers stay in L1 and L2
constexpr int kMaxTiles = 4;

int64_t scratch_bytes(const LinearCall& call) { return call.rows * QuantisedRows::bytes_of_row(call.depth); }

void prepare(const LinearCall& call, int64_t begin, int64_t end) {
  const int64_t stride = QuantisedRows::bytes_of_row(call.depth);
  for (int64_t row = begin; row < end; row++) {
    quantise_row(call.x + row * call.x_stride, call.depth, call.scratch + row * stride);
  }
}

// Blocks to the right for a block's group.
int group_shift(const Encoding& encoding) {
  switch (encoding.group) {
    case 32: return 0;
    case 64: return 1;
    case 128: return 2;
    default: return 62;  // the whole row
  }
}

// All rows [row, row + rows) of `tiles` neighbouring tiles.
void tile_group(const LinearCall& call, int64_t row, int64_t rows, int64_t tile, int tiles) {
  alignas(64) float sums[kGroupRows * kTileColumns * kMaxTiles];
  const Encoding& encoding = call.encoding;
  const int64_t across = tiles * kTileColumns;
  std::memset(sums, 0, rows * across * sizeof(float));
  const int64_t bytes = encoding.tile_bytes(call.depth), header = encoding.header_bytes(call.depth);
  const int64_t line_bytes = encoding.bits * 64;  // of a block and tile
  const char* base = call.weights + tile * bytes;
  const int64_t row_bytes = QuantisedRows::bytes_of_row(call.depth);
  const int64_t scale_stride = kTileColumns * (encoding.minimum ? 2 : 1);
  const int shift = group_shift(encoding);
  const int64_t row_blocks = (rows + integer_kernels->max_rows - 1) / integer_kernels->max_rows;
  const int64_t blocks = call.depth / kBlock;
  for (int64_t block = 0; block < blocks; block += kChunkBlocks) {
    const int64_t count = blocks - block < kChunkBlocks ? blocks - block : kChunkBlocks;
    const char* chunk = base + header + block * line_bytes;
    // Behind the last chunk come the scales of the next tiles, and their first weights.
    const char* next = block + kChunkBlocks < blocks ? chunk + count * line_bytes : base + tiles * bytes;
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(base) + (block >> shift) * scale_stride;
    for (int64_t part = 0; part < row_blocks; part++) {
      const int64_t begin = rows * part / row_blocks, end = rows * (part + 1) / row_blocks;
      const QuantisedRows x{call.scratch + (row + begin) * row_bytes, row_bytes, call.depth};
      // The first block of rows prefetches for all.
      integer_kernels->find(encoding.bits, end - begin, tiles)(
          {chunk, scales, bytes, scale_stride, shift, encoding.minimum, count, block, x, sums + begin * across, next,
           part == 0 ? encoding.bits : 0});
    }
  }
  finish(call, sums, row, rows, tile, tiles);
}

void linear_integer(const LinearCall& call, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < call.rows; row += kGroupRows) {
    const int64_t rows = call.rows - row < kGroupRows ? call.rows - row : kGroupRows;
    const int wide = integer_kernels->tiles_for(rows);
    int64_t tile = begin;
    for (; tile + wide <= end; tile += wide) tile_group(call, row, rows, tile, wide);
    for (; tile < end; tile++) tile_group(call, row, rows, tile, 1);
  }
}

void unpack_row(const Encoding& encoding, const char* weights, int64_t depth, int64_t row, float* out) {
  const char* tile = weights + row / kTileColumns * encoding.tile_bytes(depth);
  const int64_t column = row % kTileColumns;
  const auto* scales = reinterpret_cast<const uint16_t*>(tile) + column;
  const auto* integers = reinterpret_cast<const uint8_t*>(tile + encoding.header_bytes(depth)) + column * 4;
  const int64_t scale_stride = kTileColumns * (encoding.minimum ? 2 : 1);
  const int shift = group_shift(encoding);
  for (int64_t k = 0; k < depth; k++) {
    const uint16_t* scale = scales + (k / kBlock >> shift) * scale_stride;
    int32_t integer;
    if (encoding.bits == 8) {
      integer = integers[k / 4 * 64 + k % 4] - 128;
    } else {
      const int both = integers[k / 8 * 64 + k % 4];
      integer = (k % 8 < 4 ? both & 15 : both >> 4) - (encoding.minimum ? 0 : 8);
    }
    const float value = half_to_float(scale[0]) * static_cast<float>(integer);  // exact
    out[k] = encoding.minimum ? value + half_to_float(scale[kTileColumns]) : value;
  }
}

}  // namespace

const WeightFormat kWeightsInteger = {scratch_bytes, prepare, linear_integer, unpack_row};

}  // namespace specc
