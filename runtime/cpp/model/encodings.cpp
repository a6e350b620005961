#include "encodings.h"

#include <cstring>

#include "error.h"

namespace specc {
namespace {

constexpr Encoding kEncodings[] = {
    {"f32", 32, 0, false},    {"bf16", 16, 0, false},    {"q8", 8, 0, false},       {"q8g32", 8, 32, false},
    {"q4g32", 4, 32, false},  {"q4g64", 4, 64, false},   {"q4g128", 4, 128, false}, {"q4mg32", 4, 32, true},
    {"q4mg64", 4, 64, true},  {"q4mg128", 4, 128, true},
};
constexpr int64_t kCount = sizeof kEncodings / sizeof kEncodings[0];

}  // namespace

const Encoding* find_encoding(const char* name) {
  for (const Encoding& encoding : kEncodings) {
    if (std::strcmp(encoding.name, name) == 0) return &encoding;
  }
  fail("there is no weight encoding %s", name);
  return nullptr;
}

const Encoding* find_encoding(int64_t number) {
  if (number >= 0 && number < kCount) return &kEncodings[number];
  fail("there is no weight encoding %ld", (long)number);
  return nullptr;
}

bool expect_packed(const char* who, const Encoding& encoding, const Tensor& packed, int64_t rows, int64_t depth) {
  const int64_t tiles = (rows + kTileColumns - 1) / kTileColumns;
  const int64_t multiple = !encoding.quantised() ? 1 : encoding.group > kBlock ? encoding.group : kBlock;
  bool fits = rows > 0 && depth > 0 && depth % multiple == 0 && packed.is_contiguous() && packed.ndim >= 1 &&
              packed.sizes[0] == tiles;
  if (encoding.quantised()) {
    fits = fits && packed.dtype == SPECC_U8 && packed.ndim == 2 && packed.sizes[1] == encoding.tile_bytes(depth);
  } else {
    fits = fits && packed.dtype == (encoding.bits == 32 ? SPECC_F32 : SPECC_BF16) && packed.ndim == 3 &&
           packed.sizes[1] == depth && packed.sizes[2] == kTileColumns;
  }
  if (!fits) {
    fail("%s: a %d-d tensor of %s, %ld first, is not a packed %s matrix [%ld, %ld]", who, packed.ndim,
         dtype_name(packed.dtype), packed.ndim < 1 ? 0L : (long)packed.sizes[0], encoding.name, (long)rows,
         (long)depth);
  }
  return fits;
}

}  // namespace specc
