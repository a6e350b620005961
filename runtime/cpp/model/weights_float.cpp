// f32 and bf16 weights in tiles of 16 output features: [tiles][K][16]. bf16 is the upper half of an f32 and is widened
// as it is read.
//
// Decoding is bound by how fast weights stream from memory, so a tile is read in chunks that stay in L1 while all
// rows pass over them, and meanwhile the next chunk is prefetched. For several blocks of rows, bf16 is widened once a
// chunk. An output element is one chain of fused multiply-adds over k, from 0 to K-1, whatever blocks of rows and tiles it
// is computed in.
#include <bit>
#include <cstring>

#include "simd.h"
#include "weights.h"

namespace specc {
namespace {

using Half = uint16_t;  // a bf16's bits

constexpr int64_t kChunk = 128;  // depth
// How far ahead of a single block of rows weights are prefetched, in k; 0: the next chunk is, as for several blocks. On an
// AMD Zen, whose own prefetching fares best beside it, 8 KB instead of 12 k made one row a fifth slower.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int64_t kNear = 12;
#else
constexpr int64_t kNear = 0;
#endif
constexpr int kVectors = kTileColumns / kNativeLanes;  // registers for the 16 columns of one k

// Blocks of rows and tiles whose accumulators fit the register file next to the weights and a broadcast activation. Of
// blocks with as many, the squarer one has fewer loads; but a few rows wait for memory, which is faster in more streams.
#if defined(__AVX512F__)
constexpr int kMaxRows = 8;  // 8 rows x 3 tiles = 24 of 32 registers
constexpr int kWide = 3;     // tiles at a time
constexpr int kMaxWide = 3;
constexpr int wide_for(int64_t) { return 3; }
#elif defined(__AVX2__)
constexpr int kMaxRows = 6;  // 6 rows x 2 registers = 12 of 16
constexpr int kWide = 1;
constexpr int kMaxWide = 3;
constexpr int wide_for(int64_t rows) { return rows <= 2 ? 3 : rows == 3 ? 2 : 1; }
#else
constexpr int kMaxRows = 6;  // NEON: 6 rows x 4 registers = 24 of 32
constexpr int kWide = 1;
constexpr int kMaxWide = 2;
constexpr int wide_for(int64_t rows) { return rows == 1 ? 2 : 1; }
#endif
constexpr int64_t kGroupRows = 96;  // rows per pass over the weights: their accumulators and inputs stay in L1 and L2

template <class Element>
struct Panel {
  const Element* weights;  // the first tile's chunk
  int64_t tile_stride;     // elements between tiles
  const float* x;          // rows kChunk apart
  int64_t depth;
  float* sums;           // [rows][tiles * 16], carried from chunk to chunk
  const char* ahead;     // what to prefetch: of each tile, `ahead_stride` bytes apart, `ahead_step` bytes further each k
  int64_t ahead_stride;
  int64_t ahead_step;
};

[[gnu::always_inline]] inline NativeF widened(const float* from) { return load<NativeF>(from); }
[[gnu::always_inline]] inline NativeF widened(const Half* from) {
  using Wide = Vector<uint32_t, kNativeLanes>;
  const auto halves = *reinterpret_cast<const VectorOf<Half, kNativeLanes>::unaligned*>(from);
  return reinterpret_cast<NativeF>(__builtin_convertvector(halves, Wide) << 16);
}

template <class Element, int Rows, int Tiles>
void panel(const Panel<Element>& p) {
  constexpr int kAcross = Tiles * kVectors;
  NativeF sums[Rows][kAcross];
#pragma GCC unroll 16
  for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 16
    for (int c = 0; c < kAcross; c++) sums[r][c] = load<NativeF>(p.sums + (r * kAcross + c) * kNativeLanes);
  }
  const Element* weights = p.weights;
  const float* x = p.x;
  const char* ahead = p.ahead;
  const int64_t tile_stride = p.tile_stride;
#pragma GCC unroll 2
  for (int64_t k = 0; k < p.depth; k++) {
    NativeF w[kAcross];
#pragma GCC unroll 16
    for (int t = 0; t < Tiles; t++) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) {
        w[t * kVectors + v] = widened(weights + t * tile_stride + v * kNativeLanes);
      }
    }
    // Without a branch: a line that was asked for already costs no more than a load.
#pragma GCC unroll 16
    for (int t = 0; t < Tiles; t++) __builtin_prefetch(ahead + t * p.ahead_stride);
    ahead += p.ahead_step;
#pragma GCC unroll 16
    for (int r = 0; r < Rows; r++) {
      const float activation = x[r * kChunk];
#pragma GCC unroll 16
      for (int c = 0; c < kAcross; c++) sums[r][c] += w[c] * activation;
    }
    weights += kTileColumns;
    x++;
  }
#pragma GCC unroll 16
  for (int r = 0; r < Rows; r++) {
#pragma GCC unroll 16
    for (int c = 0; c < kAcross; c++) store(p.sums + (r * kAcross + c) * kNativeLanes, sums[r][c]);
  }
}

template <class Element>
using PanelKernel = void (*)(const Panel<Element>&);

template <class Element, int... Rows>
struct Table {
  PanelKernel<Element> one_tile[sizeof...(Rows) + 1] = {nullptr, panel<Element, Rows, 1>...};
  PanelKernel<Element> wide[sizeof...(Rows) + 1] = {nullptr, panel<Element, Rows, wide_for(Rows)>...};
};
#if defined(__AVX512F__)
template <class Element>
constexpr Table<Element, 1, 2, 3, 4, 5, 6, 7, 8> kKernels;
#else
template <class Element>
constexpr Table<Element, 1, 2, 3, 4, 5, 6> kKernels;
#endif

template <class Element>
PanelKernel<Element> kernel_for(int64_t rows, int tiles) {
  return tiles == 1 ? kKernels<Element>.one_tile[rows] : kKernels<Element>.wide[rows];
}

// Chunks are even, so that one prefetches all of the next.
struct Chunks {
  int64_t depth, count;
  explicit Chunks(int64_t k) : depth(k), count((k + kChunk - 1) / kChunk) {}
  int64_t begin(int64_t chunk) const { return depth * chunk / count; }
};

// Rows as kernels go through them, [chunks][rows][kChunk]: at distances that are known when compiling, and side by side
// in L1. One row is used as it lies.
int64_t scratch_bytes(const LinearCall& call) {
  const int64_t floats = Chunks(call.depth).count * call.rows * kChunk;
  return call.rows == 1 ? 0 : floats * static_cast<int64_t>(sizeof(float));
}

void prepare(const LinearCall& call, int64_t begin, int64_t end) {
  const Chunks chunks(call.depth);
  float* const packed = reinterpret_cast<float*>(call.scratch);
  for (int64_t c = 0; c < chunks.count; c++) {
    const int64_t k = chunks.begin(c), depth = chunks.begin(c + 1) - k;
    for (int64_t row = begin; row < end; row++) {
      std::memcpy(packed + (c * call.rows + row) * kChunk, call.x + row * call.x_stride + k, depth * sizeof(float));
    }
  }
}

// A chunk of `tiles` tiles as floats, [tiles][kChunk][16].
void widen(const Half* from, int64_t tile_stride, int tiles, int64_t depth, float* to) {
  for (int t = 0; t < tiles; t++) {
    for (int64_t i = 0; i < depth * kTileColumns; i += kNativeLanes) {
      store(to + t * kChunk * kTileColumns + i, widened(from + t * tile_stride + i));
    }
  }
}

// All rows [row, row + rows) of `tiles` neighbouring tiles.
template <class Element>
void tile_group(const LinearCall& call, int64_t row, int64_t rows, int64_t tile, int tiles) {
  alignas(64) float sums[kGroupRows * kTileColumns * kWide];
  const int64_t across = tiles * kTileColumns;
  std::memset(sums, 0, rows * across * sizeof(float));
  const int64_t tile_stride = call.depth * kTileColumns;
  const Element* weights = reinterpret_cast<const Element*>(call.weights) + tile * tile_stride;
  const int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;  // of rows, as even as can be
  constexpr bool kWidens = sizeof(Element) < sizeof(float);
  alignas(64) float wide[kWidens ? kMaxWide * kChunk * kTileColumns : 1];
  const Chunks chunks(call.depth);
  const float* const packed = reinterpret_cast<const float*>(call.scratch);
  for (int64_t c = 0; c < chunks.count; c++) {
    const int64_t k = chunks.begin(c), depth = chunks.begin(c + 1) - k;
    const Element* chunk = weights + k * kTileColumns;
    const float* x = packed == nullptr ? call.x + k : packed + (c * call.rows + row) * kChunk;
    const Element* next = c + 1 < chunks.count ? chunk + depth * kTileColumns : weights + tiles * tile_stride;
    if constexpr (kWidens) {
      if (blocks > 1) widen(chunk, tile_stride, tiles, depth, wide);
    }
    for (int64_t block = 0; block < blocks; block++) {
      const int64_t begin = rows * block / blocks;
      const int64_t end = rows * (block + 1) / blocks;
      // Several blocks share the prefetching of the next chunk. One is as fast as memory is, and asks for what is near.
      const Element* ahead_from =
          blocks == 1 && kNear > 0 ? chunk + kNear * kTileColumns : next + block * depth / blocks * kTileColumns;
      const char* ahead = reinterpret_cast<const char*>(ahead_from);
      const int64_t ahead_stride = tile_stride * static_cast<int64_t>(sizeof(Element));
      const int64_t step = (kTileColumns * static_cast<int64_t>(sizeof(Element)) + blocks - 1) / blocks;
      const float* from = x + begin * kChunk;
      float* to = sums + begin * across;
      if (kWidens && blocks > 1) {
        kernel_for<float>(end - begin, tiles)(
            {wide, kChunk * kTileColumns, from, depth, to, ahead, ahead_stride, step});
      } else {
        kernel_for<Element>(end - begin, tiles)({chunk, tile_stride, from, depth, to, ahead, ahead_stride, step});
      }
    }
  }
  finish(call, sums, row, rows, tile, tiles);
}

template <class Element>
void linear_float(const LinearCall& call, int64_t begin, int64_t end) {
  const int64_t groups = (call.rows + kGroupRows - 1) / kGroupRows;
  for (int64_t group = 0; group < groups; group++) {
    const int64_t row = call.rows * group / groups, rows = call.rows * (group + 1) / groups - row;
    const int wide = rows <= kMaxRows ? wide_for(rows) : kWide;
    int64_t tile = begin;
    for (; tile + wide <= end; tile += wide) tile_group<Element>(call, row, rows, tile, wide);
    for (; tile < end; tile++) tile_group<Element>(call, row, rows, tile, 1);
  }
}

template <class Element>
void unpack_row(const Encoding&, const char* weights, int64_t depth, int64_t row, float* out) {
  const Element* from = reinterpret_cast<const Element*>(weights) + row / kTileColumns * depth * kTileColumns;
  for (int64_t k = 0; k < depth; k++) {
    const Element value = from[k * kTileColumns + row % kTileColumns];
    if constexpr (sizeof(Element) == sizeof(float)) {
      out[k] = value;
    } else {
      out[k] = std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
    }
  }
}

}  // namespace

const WeightFormat kWeightsF32 = {kMaxWide, scratch_bytes, prepare, linear_float<float>, unpack_row<float>};
const WeightFormat kWeightsBf16 = {kMaxWide, scratch_bytes, prepare, linear_float<Half>, unpack_row<Half>};

}  // namespace specc
