// The Gumbel noise of sampling: a pure function of seed, position and token, so that a run's tokens do not depend on
// what drafted them. The formulas are part of the artifact contract (runtime/README.md, specc.accept).
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

namespace specc {

inline uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// What a row's noise has in common.
inline uint64_t noise_key(uint64_t seed, uint64_t position) { return splitmix64(splitmix64(seed) ^ position); }

// The 52 random bits of a token. One more, and (bits + 0.5) would need 54 digits and could round u to 1, G to infinity.
inline uint64_t noise_bits(uint64_t key, uint64_t token) { return splitmix64(key ^ token) >> 12; }

constexpr int kNoiseBits = 52;
constexpr uint64_t kAllOnes = (uint64_t{1} << kNoiseBits) - 1;

inline double gumbel(uint64_t bits) {
  const double u = (static_cast<double>(bits) + 0.5) * 0x1p-52;
  return -std::log(-std::log(u));
}

// An upper bound of gumbel(bits) for the price of a bit count. As -log(u) >= 1-u, G <= -log(1-u); and 1-u is at least
// 2^-(z+1) when z of the 52 leading bits are ones. The slack covers the rounding of both logs many times over.
inline double gumbel_bound(uint64_t bits) {
  const uint64_t complement = kAllOnes - bits;
  const int ones = std::countl_zero(complement) - (64 - kNoiseBits);
  return (ones + 1) * 0.6931471805599453 + 1e-9;
}

// No bits below the result have a gumbel_bound of `gap` or more.
inline uint64_t least_bits(double gap) {
  const double ones = std::ceil(gap / 0.6931471805599453 - 1 - 1e-6);
  if (!(ones > 0)) return 0;  // also when the gap is NaN: nothing is ruled out
  if (ones >= kNoiseBits) return kAllOnes;
  return (uint64_t{1} << kNoiseBits) - (uint64_t{1} << (kNoiseBits - static_cast<int>(ones)));
}

}  // namespace specc
