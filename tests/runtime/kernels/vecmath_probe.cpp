// Largest errors of the vector functions against libm in double, over every `stride`-th float.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "vecmath.h"

using specc::F16;
using specc::F8;

namespace {

template <class V>
V apply(int function, const V& x) {
  switch (function) {
    case 0: return specc::vec_exp(x);
    case 1: return specc::vec_expm1(x);
    case 2: return specc::vec_log(x);
    case 3: return specc::vec_log1p(x);
    case 4: return specc::vec_tanh(x);
    case 5: return specc::vec_sin(x);
    default: return specc::vec_cos(x);
  }
}

double exact(int function, double x) {
  switch (function) {
    case 0: return std::exp(x);
    case 1: return std::expm1(x);
    case 2: return std::log(x);
    case 3: return std::log1p(x);
    case 4: return std::tanh(x);
    case 5: return std::sin(x);
    default: return std::cos(x);
  }
}

double ulp_error(float got, double want) {
  const float rounded = static_cast<float>(want);
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) == std::isnan(got) ? 0 : 1e9;
  if (std::isinf(rounded) || std::isinf(got)) {
    if (rounded == got) return 0;
    return std::fabs(want) > 3.4028e38 && std::fabs(got) > 3.4028e38 ? 1 : 1e9;  // at the edge of overflow
  }
  int exponent = 0;
  std::frexp(rounded, &exponent);
  return std::fabs(got - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

}  // namespace

// Returns the largest error in ulp, or -1 if a result depends on the lane or the vector's width.
extern "C" double largest_error(int function, uint32_t stride) {
  double worst = 0;
  uint64_t bits = 0;
  while (bits < (uint64_t{1} << 32)) {
    F16 x = {};
    for (int i = 0; i < 16; i++, bits += stride) x[i] = std::bit_cast<float>(static_cast<uint32_t>(bits));
    F8 low = {}, turned = {};
    for (int i = 0; i < 8; i++) {
      low[i] = x[i];
      turned[i] = x[7 - i];
    }
    const F16 wide = apply(function, x);
    const F8 narrow = apply(function, low);
    const F8 backwards = apply(function, turned);
    for (int i = 0; i < 8; i++) {
      const float a = wide[i], b = narrow[i], c = backwards[7 - i];
      if (!(a != a) && (std::memcmp(&a, &b, 4) != 0 || std::memcmp(&a, &c, 4) != 0)) return -1;
    }
    for (int i = 0; i < 16; i++) worst = std::max(worst, ulp_error(wide[i], exact(function, x[i])));
  }
  return worst;
}
