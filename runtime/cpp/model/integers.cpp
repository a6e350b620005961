// Activations as integers; the kernel that runs anywhere; the choice of kernels.
#include "integers.h"

#include <bit>

namespace specc {
namespace {

constexpr uint32_t kInfinity = 0x7f800000;

void plain_panel(const IntegerPanel& p, int bits) {
  const int32_t offset = p.minimum ? 0 : bits == 8 ? 128 : 8;
  const uint8_t* weights = reinterpret_cast<const uint8_t*>(p.weights);
  const uint16_t* line = p.scales;
  QuantisedRows x = p.x;
  for (int64_t block = p.first_block; block < p.first_block + p.blocks; block++, x.next_block()) {
    if ((block & p.segment_mask) == 0) {
      line = reinterpret_cast<const uint16_t*>(weights);
      weights += 64;
    }
    const uint16_t* scales = line + (block >> p.group_shift & p.pair_mask) * 16;
    for (int column = 0; column < 16; column++) {
      int32_t dot = 0;
      for (int k = 0; k < 32; k++) {
        const int byte = (bits == 8 ? k / 4 : k / 8) * 64 + column * 4 + k % 4;
        const int32_t w = bits == 8 ? weights[byte] : k % 8 < 4 ? weights[byte] & 15 : weights[byte] >> 4;
        dot += (w - offset) * x.integers[k];
      }
      const float scaled = static_cast<float>(dot) * x.scales[0];
      float y = __builtin_fmaf(scaled, half_to_float(scales[column]), p.y[column]);
      if (p.minimum) {
        y = __builtin_fmaf(x.scaled_sums[0], half_to_float(scales[16 + column]), y);
      }
      p.y[column] = y;
    }
    weights += bits * 64;
  }
}

IntegerKernel find_plain(int bits, int64_t) {
  return bits == 8 ? [](const IntegerPanel& p) { plain_panel(p, 8); } : [](const IntegerPanel& p) { plain_panel(p, 4); };
}

const IntegerKernels* best() {
  for (int i = 0;; i++) {
    if (kIntegerKernels[i]->runs_here()) return kIntegerKernels[i];
  }
}

}  // namespace

const IntegerKernels kIntegersPlain = {"plain", [] { return true; }, 1, find_plain, nullptr};

#if defined(__x86_64__)
const IntegerKernels* const kIntegerKernels[] = {&kIntegersVnni, &kIntegersAvx2, &kIntegersPlain};
#else
const IntegerKernels* const kIntegerKernels[] = {&kIntegersPlain};
#endif
const int kIntegerKernelsCount = sizeof kIntegerKernels / sizeof kIntegerKernels[0];
const IntegerKernels* integer_kernels = best();

// Magnitudes are compared as the integers that their bits are: NaN is then the largest of all.
void quantise_row(const float* x, int64_t depth, int excess, QuantisedRows to) {
  constexpr float kSmallest = 1e-30f;     // so that 127 / most is finite
  constexpr float kToInteger = 12582912;  // 1.5 * 2^23: what is added to it is rounded to an integer, the lowest bits
  for (int64_t block = 0; block < depth / kBlock; block++, to.next_block()) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(x[block * 32 + i]) & 0x7fffffff;
      bits = magnitude > bits ? magnitude : bits;
    }
    const float most = std::bit_cast<float>(bits);
    const bool usable = bits < kInfinity && most >= kSmallest;
    const float inverse = usable ? 127 / most : 0;
    int32_t sum = 0;
    for (int i = 0; i < 32; i++) {
      // One fused multiply-add: x * inverse is rounded once.
      const float rounded = x[block * 32 + i] * inverse + kToInteger;
      const int32_t integer = usable ? std::bit_cast<int32_t>(rounded) - std::bit_cast<int32_t>(kToInteger) : 0;
      to.integers[i] = static_cast<int8_t>(integer);
      sum += integer;
    }
    *to.scales = usable ? most / 127 : bits < kInfinity ? 0 : __builtin_nanf("");
    *to.starts = -excess * sum;
    *to.scaled_sums = static_cast<float>(sum) * *to.scales;
  }
}

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 0) {  // zero and what is below the normal numbers: a multiple of 2^-24
    return std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(fraction) * 0x1p-24f) | sign);
  }
  return std::bit_cast<float>(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}

}  // namespace specc
