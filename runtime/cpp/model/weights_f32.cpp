// f32 weights in tiles of 16 output features: [tiles][K][16].
//
// Decoding is bound by how fast weights stream from memory, so a tile is read in chunks of kChunk depth (4 KB) that
// stay in L1 while all rows pass over them, and meanwhile the next chunk is prefetched. An output element is one chain
// of fused multiply-adds over k, from 0 to K-1, whatever blocks of rows and tiles it is computed in.
#include <cstring>

#include "simd.h"
#include "weights.h"

namespace specc {
namespace {

constexpr int64_t kChunk = 64;
constexpr int kVectors = kTileColumns / kNativeLanes;  // registers for the 16 columns of one k

// Accumulators that fit the register file next to the weights and a broadcast activation.
#if defined(__AVX512F__)
constexpr int kMaxRows = 12;   // 12 rows x 2 tiles = 24 of 32 registers
constexpr int kWide = 2;       // tiles at a time
constexpr int kWideOneRow = 4; // one row: four chains to hide the latency of the fused multiply-add
#elif defined(__AVX2__)
constexpr int kMaxRows = 6;    // 6 rows x 2 registers = 12 of 16
constexpr int kWide = 1;
constexpr int kWideOneRow = 2;
#else
constexpr int kMaxRows = 6;    // NEON: 6 rows x 4 registers = 24 of 32
constexpr int kWide = 1;
constexpr int kWideOneRow = 2;
#endif
constexpr int kMaxWide = kWideOneRow > kWide ? kWideOneRow : kWide;
constexpr int64_t kGroupRows = 96;  // rows per pass over the weights: their accumulators and inputs stay in L1 and L2

struct Panel {
  const float* weights;  // the first tile's chunk
  int64_t tile_stride;   // floats between tiles
  const float* x;
  int64_t x_stride;
  int64_t depth;
  float* sums;           // [rows][tiles * 16], carried from chunk to chunk
  const char* ahead;     // what to prefetch: `ahead_step` bytes for each k and tile
  int64_t ahead_step;
};

template <int Rows, int Tiles>
void panel(const Panel& p) {
  constexpr int kAcross = Tiles * kVectors;
  NativeF sums[Rows][kAcross];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 16
    for (int c = 0; c < kAcross; c++) sums[r][c] = load<NativeF>(p.sums + (r * kAcross + c) * kNativeLanes);
  }
  const float* weights = p.weights;
  const float* x = p.x;
  const char* ahead = p.ahead;
  const int64_t tile_stride = p.tile_stride;
  const int64_t x_stride = p.x_stride;
  const int64_t step = p.ahead_step;
  for (int64_t k = 0; k < p.depth; k++) {
    NativeF w[kAcross];
#pragma GCC unroll 16
    for (int t = 0; t < Tiles; t++) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) {
        w[t * kVectors + v] = load<NativeF>(weights + t * tile_stride + v * kNativeLanes);
      }
      __builtin_prefetch(ahead + t * tile_stride * 4);
    }
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
      const float activation = x[r * x_stride];
#pragma GCC unroll 16
      for (int c = 0; c < kAcross; c++) sums[r][c] += w[c] * activation;
    }
    weights += kTileColumns;
    ahead += step;
    x++;
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 16
    for (int c = 0; c < kAcross; c++) store(p.sums + (r * kAcross + c) * kNativeLanes, sums[r][c]);
  }
}

using PanelKernel = void (*)(const Panel&);

template <int Tiles, int... Rows>
struct Table {
  PanelKernel by_rows[sizeof...(Rows) + 1] = {nullptr, panel<Rows, Tiles>...};
};
#if defined(__AVX512F__)
template <int Tiles>
using Kernels = Table<Tiles, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12>;
#else
template <int Tiles>
using Kernels = Table<Tiles, 1, 2, 3, 4, 5, 6>;
#endif
constexpr Kernels<1> kOneTile;
constexpr Kernels<kWide> kWideTiles;

PanelKernel kernel_for(int64_t rows, int tiles) {
  if (rows == 1 && tiles == kWideOneRow) return panel<1, kWideOneRow>;
  return tiles == 1 ? kOneTile.by_rows[rows] : kWideTiles.by_rows[rows];
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

// All rows [row, row + rows) of `tiles` neighbouring tiles.
void tile_group(const LinearCall& call, int64_t row, int64_t rows, int64_t tile, int tiles) {
  alignas(64) float sums[kGroupRows * kTileColumns * kWide > kMaxWide * kTileColumns ? kGroupRows * kTileColumns * kWide
                                                                                     : kMaxWide * kTileColumns];
  const int64_t across = tiles * kTileColumns;
  std::memset(sums, 0, rows * across * sizeof(float));
  const int64_t tile_stride = call.depth * kTileColumns;
  const float* weights = reinterpret_cast<const float*>(call.weights) + tile * tile_stride;
  const int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;  // of rows, as even as can be
  for (int64_t k = 0; k < call.depth; k += kChunk) {
    const int64_t depth = call.depth - k < kChunk ? call.depth - k : kChunk;
    const float* chunk = weights + k * kTileColumns;
    const float* next = k + kChunk < call.depth ? chunk + kChunk * kTileColumns : weights + tiles * tile_stride;
    for (int64_t block = 0; block < blocks; block++) {
      const int64_t begin = rows * block / blocks;
      const int64_t end = rows * (block + 1) / blocks;
      // The blocks share the prefetching of the next chunk.
      const char* ahead = reinterpret_cast<const char*>(next + block * kChunk / blocks * kTileColumns);
      kernel_for(end - begin, tiles)({chunk, tile_stride, call.x + (row + begin) * call.x_stride + k, call.x_stride,
                                      depth, sums + begin * across, ahead, 64 / blocks});
    }
  }
  finish(call, sums, row, rows, tile, tiles);
}

void linear_f32(const LinearCall& call, int64_t begin, int64_t end) {
  for (int64_t row = 0; row < call.rows; row += kGroupRows) {
    const int64_t rows = call.rows - row < kGroupRows ? call.rows - row : kGroupRows;
    const int wide = rows == 1 ? kWideOneRow : kWide;
    int64_t tile = begin;
    for (; tile + wide <= end; tile += wide) tile_group(call, row, rows, tile, wide);
    for (; tile < end; tile++) tile_group(call, row, rows, tile, 1);
  }
}

void unpack_row(const Encoding&, const char* weights, int64_t depth, int64_t row, float* out) {
  const float* from = reinterpret_cast<const float*>(weights) + row / kTileColumns * depth * kTileColumns + row % kTileColumns;
  for (int64_t k = 0; k < depth; k++) out[k] = from[k * kTileColumns];
}

}  // namespace

const WeightFormat kWeightsF32 = {nullptr, nullptr, linear_f32, unpack_row};

}  // namespace specc
