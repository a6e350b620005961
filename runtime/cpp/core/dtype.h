// Element types, numbered as in specc_model.h, and overflow-safe sizes of shapes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "specc_model.h"

namespace specc {

struct DtypeInfo {
  int32_t number;
  int64_t bytes;
  const char* name;         // in a manifest
  const char* safetensors;  // in a weights file
};

inline constexpr DtypeInfo kDtypes[] = {
    {SPECC_F32, 4, "f32", "F32"},    {SPECC_F64, 8, "f64", "F64"},    {SPECC_I64, 8, "i64", "I64"},
    {SPECC_I32, 4, "i32", "I32"},    {SPECC_I8, 1, "i8", "I8"},       {SPECC_U8, 1, "u8", "U8"},
    {SPECC_BOOL, 1, "bool", "BOOL"}, {SPECC_BF16, 2, "bf16", "BF16"}, {SPECC_F16, 2, "f16", "F16"},
};

inline const DtypeInfo* dtype_named(std::string_view name) {
  for (const auto& dtype : kDtypes) {
    if (name == dtype.name || name == dtype.safetensors) return &dtype;
  }
  return nullptr;
}

inline const DtypeInfo* dtype_numbered(int32_t number) {
  for (const auto& dtype : kDtypes) {
    if (number == dtype.number) return &dtype;
  }
  return nullptr;
}

// 64 TiB. Larger sizes are damage, and below it sums and products stay in range.
inline constexpr int64_t kMaxBytes = int64_t{1} << 46;
inline constexpr size_t kMaxRank = 8;

// Bytes of a tensor of this shape; nothing if a dimension is negative or the size is absurd.
inline std::optional<int64_t> checked_bytes(const std::vector<int64_t>& shape, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (const int64_t dimension : shape) {
    if (dimension < 0 || (dimension > 0 && bytes > kMaxBytes / dimension)) return std::nullopt;
    bytes *= dimension;
  }
  return bytes;
}

inline std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace specc
