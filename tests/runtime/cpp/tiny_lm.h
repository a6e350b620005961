// A language model in a few lines, shared by the test's model.so and by the test, which decodes with it in the plainest
// way. The next token depends on every token before it and on its position, so a stale row, a wrong position or a shift
// by one changes the text. It is also repetitive enough for an n-gram drafter to find something.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tiny {

constexpr int64_t kVocab = 100;    // columns of the logits
constexpr int64_t kValid = 97;     // words; the columns beyond are padding that must never win
constexpr int64_t kNanToken = 95;  // makes every logit after it a NaN
constexpr int64_t kSalt = 12345;   // in the weights file

inline uint64_t splitmix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

// logits[0..kVocab) after text[0..count).
inline void logits(const int64_t* text, size_t count, int64_t salt, float* out) {
  uint64_t whole = static_cast<uint64_t>(salt) + count;
  for (size_t i = 0; i < count; ++i) whole = splitmix64(whole ^ static_cast<uint64_t>(text[i]));
  const uint64_t local = splitmix64(static_cast<uint64_t>(text[count - 1]));
  const uint64_t favourite = whole % 7 == 0 ? whole / 7 % 90 : local % 9;
  for (int64_t v = 0; v < kVocab; ++v) {
    out[v] = static_cast<float>(splitmix64(whole + static_cast<uint64_t>(v)) % 1000) / 1000.0f;
    if (static_cast<uint64_t>(v) == favourite) out[v] += 5;
    if (v == kNanToken) out[v] = -1e9f;
    if (v >= kValid) out[v] = 1e9f;
    if (text[count - 1] == kNanToken) out[v] = NAN;
  }
}

// Of a drafter that knows the model, but not well.
inline void draft_logits(const int64_t* text, size_t count, int64_t salt, float* out) {
  logits(text, count, salt, out);
  for (int64_t v = 0; v < kValid; ++v) {
    const uint64_t hash = splitmix64(static_cast<uint64_t>(text[count - 1] * kVocab + v));
    out[v] += static_cast<float>(hash % 1000) / 500.0f;
  }
}

// Whether the token after text[0..count) will be guessed: of the drafts before it, nothing else.
inline float confidence(const int64_t* text, size_t count) {
  return static_cast<float>(splitmix64(static_cast<uint64_t>(text[count - 1]) + count) % 8 + 1) / 8.0f;
}

inline double gumbel(int64_t seed, int64_t position, int64_t v) {
  const uint64_t h = splitmix64(splitmix64(splitmix64(static_cast<uint64_t>(seed)) ^ static_cast<uint64_t>(position)) ^
                                static_cast<uint64_t>(v));
  const double u = (static_cast<double>(h >> 12) + 0.5) * 0x1p-52;
  return -std::log(-std::log(u));
}

// The token at `position` given its logits; -1 if they are NaN.
inline int64_t choose(const float* row, int64_t valid, double temperature, int64_t seed, int64_t position) {
  int64_t best = -1;
  double best_score = 0;
  for (int64_t v = 0; v < valid; ++v) {
    const double score = temperature == 0 ? row[v] : row[v] / temperature + gumbel(seed, position, v);
    if (std::isnan(score)) return -1;
    if (best < 0 || score > best_score) best = v, best_score = score;
  }
  return best;
}

}  // namespace tiny
