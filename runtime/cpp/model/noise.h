// The Gumbel noise of sampling: a pure function of seed, position and token, so that a run's tokens do not depend on
// what drafted them. The formulas are part of the artifact contract (runtime/README.md, specc.accept).
#pragma once
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

// What else a round draws has noise of its own, so that no draw tells of another: drafts, whether each is kept, and what
// stands in for one that is not. It depends on the round's root as well. Block verification looks at all drafts before it
// keeps the first, so noise that decided a round must not draw the same positions again in the next one.
enum class Purpose : uint64_t { kDraft = 1, kAccept = 2, kResidual = 3 };
inline uint64_t round_seed(uint64_t seed, Purpose purpose, uint64_t root) {
  return noise_key(splitmix64(seed + static_cast<uint64_t>(purpose) * 0xD1B54A32D192ED03u), root);
}
inline uint64_t noise_key(uint64_t seed, Purpose purpose, uint64_t root, uint64_t row) {
  return noise_key(round_seed(seed, purpose, root), row);
}

// The 52 random bits of a token. One more, and (bits + 0.5) would need 54 digits and could round u to 1, G to infinity.
inline uint64_t noise_bits(uint64_t key, uint64_t token) { return splitmix64(key ^ token) >> 12; }

constexpr int kNoiseBits = 52;
constexpr uint64_t kAllOnes = (uint64_t{1} << kNoiseBits) - 1;

inline double uniform(uint64_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-52; }  // in (0, 1)
inline double gumbel(uint64_t bits) { return -std::log(-std::log(uniform(bits))); }

// An upper bound of gumbel(bits) for the price of a bit count. As -log(u) >= 1-u, G <= -log(1-u); and 1-u is at least
// 2^-(z+1) when z of the 52 leading bits are ones. The slack covers the rounding of both logs many times over.
inline double gumbel_bound(uint64_t bits) {
  const uint64_t complement = kAllOnes - bits;
  const int ones = complement == 0 ? kNoiseBits : __builtin_clzll(complement) - (64 - kNoiseBits);
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
