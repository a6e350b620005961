// Weights of 8 and 4 bits in tiles of 16 output features: [tiles][scales, then integers] (ir/encodings.py).
//
// Rows are quantised once for the call. Tiles are computed one by one, so memory is one sequential stream, prefetched at
// a fixed distance; if the kernels cannot take all rows at once, in chunks that stay in L1 while all rows pass over them, and
// by kernels of two tiles where there are some: these prefetch a share of the next chunk each.
#include <cstring>

#include "integers.h"
#include "weights.h"

namespace specc {
namespace {

constexpr int64_t kGroupRows = 96;  // rows per pass over the weights, whole panels: their integers stay in L2
constexpr int64_t kLead = 4096;     // bytes between what is read and what is prefetched

int64_t scratch_bytes(const LinearCall& call) { return QuantisedRows::bytes(call.rows, call.depth); }

// What is added to integers where they are stored.
int excess_of(const Encoding& encoding) { return encoding.minimum ? 0 : encoding.bits == 8 ? 128 : 8; }

void prepare(const LinearCall& call, int64_t begin, int64_t end) {
  const int excess = excess_of(call.encoding);
  for (int64_t row = begin; row < end; row++) {
    quantise_row(call.x + row * call.x_stride, call.depth, excess,
                 QuantisedRows::at(call.scratch, call.rows, call.depth, row, 0));
  }
}

// Where a block's scales are.
struct Scales {
  int64_t segment_mask;
  int group_shift;
  int64_t pair_mask;
};

Scales scales_of(const Encoding& encoding) {
  const int64_t mask = encoding.segment_blocks() - 1;
  if (encoding.group == 0) return {mask, 0, 0};
  return {mask, encoding.group == 32 ? 0 : encoding.group == 64 ? 1 : 2, encoding.minimum ? 0 : 1};
}

// All rows [row, row + rows) of a tile, or of it and the next.
void compute_tiles(const LinearCall& call, int64_t row, int64_t rows, int64_t tile, int tiles) {
  alignas(64) float sums[2][kGroupRows * kTileColumns];
  for (int t = 0; t < tiles; t++) std::memset(sums[t], 0, rows * kTileColumns * sizeof(float));
  const Encoding& encoding = call.encoding;
  const int64_t tile_bytes = encoding.tile_bytes(call.depth), max_rows = integer_kernels->max_rows;
  const char* base = call.weights + tile * tile_bytes;
  const Scales where = scales_of(encoding);
  const int64_t row_blocks = (rows + max_rows - 1) / max_rows;
  const int64_t blocks = call.depth / kBlock, step = row_blocks == 1 ? blocks : kChunkBlocks;
  const auto place = [&](int64_t block) { return base + (encoding.lines_before(block) + block * encoding.bits) * 64; };
  for (int64_t block = 0; block < blocks; block += step) {
    const int64_t count = blocks - block < step ? blocks - block : step;
    const char* weights = place(block);
    const char* next = block + count < blocks ? place(block + count) : base + tiles * tile_bytes;
    for (int64_t part = 0; part < row_blocks; part++) {
      const int64_t begin = part * max_rows;
      const int64_t some = rows - begin < max_rows ? rows - begin : max_rows;
      const QuantisedRows x = QuantisedRows::at(call.scratch, call.rows, call.depth, row + begin, block);
      // Of one tile the first rows prefetch for all.
      const int64_t lead = tiles == 2 ? next - weights : part == 0 ? kLead : 0;
      const auto find = tiles == 2 ? integer_kernels->find_pair : integer_kernels->find;
      find(encoding.bits, some)({weights, reinterpret_cast<const uint16_t*>(base), where.segment_mask, where.group_shift,
                                 where.pair_mask, encoding.minimum, block, count, x, sums[0] + begin * kTileColumns,
                                 tile_bytes, kGroupRows * kTileColumns, lead, block + count * part / row_blocks,
                                 block + count * (part + 1) / row_blocks});
    }
  }
  for (int t = 0; t < tiles; t++) finish(call, sums[t], row, rows, tile + t, 1);
}

void linear_integer(const LinearCall& call, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < call.rows; row += kGroupRows) {
    const int64_t rows = call.rows - row < kGroupRows ? call.rows - row : kGroupRows;
    const bool pairs = rows > integer_kernels->max_rows && integer_kernels->find_pair != nullptr;
    for (int64_t tile = begin; tile < end;) {
      const int tiles = pairs && tile + 2 <= end ? 2 : 1;
      compute_tiles(call, row, rows, tile, tiles);
      tile += tiles;
    }
  }
}

void unpack_row(const Encoding& encoding, const char* weights, int64_t depth, int64_t row, float* out) {
  const char* tile = weights + row / kTileColumns * encoding.tile_bytes(depth);
  const int64_t column = row % kTileColumns;
  const Scales where = scales_of(encoding);
  for (int64_t k = 0; k < depth; k++) {
    const int64_t block = k / kBlock, segment = block & ~where.segment_mask;
    const char* line = tile + (encoding.lines_before(segment) + segment * encoding.bits) * 64;
    const uint16_t* scale =
        reinterpret_cast<const uint16_t*>(line) + (block >> where.group_shift & where.pair_mask) * 16 + column;
    const auto* integers =
        reinterpret_cast<const uint8_t*>(tile + encoding.lines_before(block + 1) * 64) + column * 4;
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

const WeightFormat kWeightsInteger = {2, scratch_bytes, prepare, linear_integer, unpack_row};

}  // namespace specc
