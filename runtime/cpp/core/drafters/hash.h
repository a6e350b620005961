#pragma once

#include <cstddef>
#include <cstdint>

namespace specc {

// splitmix64's finaliser: every input bit reaches every output bit.
inline uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

inline uint64_t hash_tokens(const int64_t* tokens, size_t count) {
  uint64_t hash = count;
  for (size_t i = 0; i < count; ++i) hash = mix(hash + 0x9E3779B97F4A7C15u + static_cast<uint64_t>(tokens[i]));
  return hash;
}

// Of an open-addressing table for so many entries: at most half full.
inline size_t capacity_for(size_t first, size_t entries) {
  size_t capacity = first;
  while (capacity < 2 * entries) capacity *= 2;
  return capacity;
}

}  // namespace specc
