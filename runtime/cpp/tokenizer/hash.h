// The hash functions and slots of the tables that the compiler lays out.
#pragma once

#include <cstdint>
#include <string_view>

namespace specc::tok {

inline uint64_t mix(uint64_t x) {  // MurmurHash3's finalizer
  x ^= x >> 33;
  x *= 0xFF51AFD7ED558CCDull;
  x ^= x >> 33;
  x *= 0xC4CEB9FE1A85EC53ull;
  return x ^ x >> 33;
}

inline uint64_t hash_bytes(std::string_view bytes) {  // FNV-1a, mixed
  uint64_t x = 0xCBF29CE484222325ull;
  for (char byte : bytes) x = (x ^ static_cast<unsigned char>(byte)) * 0x100000001B3ull;
  return mix(x);
}

inline size_t first_slot(uint64_t hash, size_t capacity) {
  return static_cast<size_t>((hash >> 32) * static_cast<uint64_t>(capacity) >> 32);
}

}  // namespace specc::tok
