// Elementary functions on float vectors. Every step is an operation on lanes, so a value's result depends on neither
// its lane, the vector's width nor the ISA; and none of it depends on the machine's libm.
//
// Largest error against double precision, over all floats (tests/runtime/test_kernels.py): exp 1 ulp; all others
// compute in double and round once: 0.51 ulp.
#pragma once
#include <cmath>

#include "simd.h"

namespace specc {

template <class V>
struct Companions {  // the vectors of as many ints, doubles and longs
  static constexpr int lanes = LanesOf<V>::value;
  using Int = Vector<int32_t, lanes>;
  using Double = Vector<double, lanes>;
  using Long = Vector<int64_t, lanes>;
};

namespace detail {

template <class To, class From>
[[gnu::always_inline]] inline To bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  return reinterpret_cast<const To&>(from);
}

// Nearest integer by the magic-number addition; |x| < 2^51.
constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52

// exp(x) - 1 for |x| <= 745, relative error under 1e-11. Splitting 2^n off the polynomial keeps small x exact.
template <class D, class L>
[[gnu::always_inline]] inline D expm1_double(const D& x) {
  const D shifted = x * 1.4426950408889634 + kRound;
  const D n = shifted - kRound;
  const D high = x - n * 0.6931471803691238;        // ln2 with 21 zero bits: n times it is exact
  const D r = high - n * 1.9082149292705877e-10;
  D p = r * (1.0 / 3628800) + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  const D small = r * r * p + r;                     // exp(r) - 1
  const L exponent = (bits<L>(shifted) - bits<L>(D{} + kRound) + 1023) << 52;
  const D scale = bits<D>(exponent);
  return scale * small + (scale - 1.0);
}

// log(m * 2^e) from s = (m - 1) / (m + 1) with m in [sqrt(1/2), sqrt(2)]: 2 atanh(s).
template <class D>
[[gnu::always_inline]] inline D log_series(const D& s) {
  const D z = s * s;
  D p = z * (1.0 / 17) + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  return 2.0 * (s * z * p + s);
}

// For positive normal doubles.
template <class D, class L>
[[gnu::always_inline]] inline D log_double(const D& x) {
  const L raw = bits<L>(x) - 0x3FE6A09E667F3BCD;      // bits of sqrt(1/2)
  const L exponent = raw >> 52;
  const D m = bits<D>((raw & 0x000FFFFFFFFFFFFF) + 0x3FE6A09E667F3BCD);
  const D e = bits<D>(exponent + bits<L>(D{} + kRound)) - kRound;
  return e * 0.6931471805599453 + log_series((m - 1.0) / (m + 1.0));
}

}  // namespace detail

// Applies a scalar function to each lane: for what no model calls in a hot loop.
template <class V, class Function>
[[gnu::always_inline]] inline V lanewise(const V& x, Function function) {
  V y = x;
  for (unsigned lane = 0; lane < sizeof(V) / sizeof(x[0]); lane++) y[lane] = function(x[lane]);
  return y;
}

// exp(x) = y * 2^exponent with y near 1, for x that are not far from 0 or infinite.
template <class V>
[[gnu::always_inline]] inline V exp_fraction(const V& x, typename Companions<V>::Int& exponent) {
  using I = typename Companions<V>::Int;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23
  const V shifted = x * 1.44269504088896341f + kMagic;
  const V n = shifted - kMagic;
  const V high = x - n * 0.693145751953125f;
  const V r = high - n * 1.428606765330187045e-06f;
  V p = r * 0.000198527617612853646278381f + 0.00139304355252534151077271f;
  p = p * r + 0.00833336077630519866943359f;
  p = p * r + 0.0416664853692054748535156f;
  p = p * r + 0.166666671633720397949219f;
  p = p * r + 0.5f;
  exponent = detail::bits<I>(shifted) - 0x4B400000;
  return (r * r * p + r) + 1.0f;
}

template <class V>
[[gnu::always_inline]] inline V vec_exp(const V& input) {
  using I = typename Companions<V>::Int;
  V x = input > 89.0f ? V{} + 89.0f : input;   // e^89 is infinite; NaN passes both comparisons
  x = x < -105.0f ? V{} - 105.0f : x;          // e^-105 rounds to 0
  I exponent;
  const V y = exp_fraction(x, exponent);
  // 2^n in two factors, since n may be beyond the exponents of a normal float.
  const I half = exponent >> 1;
  const V first = detail::bits<V>((half + 127) << 23);
  const V second = detail::bits<V>((exponent - half + 127) << 23);
  return y * first * second;
}

template <class V>
[[gnu::always_inline]] inline V vec_expm1(const V& input) {
  using C = Companions<V>;
  V x = input > 90.0f ? V{} + 90.0f : input;
  x = x < -90.0f ? V{} - 90.0f : x;
  const auto wide = __builtin_convertvector(x, typename C::Double);
  const V y = __builtin_convertvector(detail::expm1_double<typename C::Double, typename C::Long>(wide), V);
  return input == 0.0f ? input : y;  // keeps the sign of zero
}

template <class V>
[[gnu::always_inline]] inline V vec_tanh(const V& input) {
  using C = Companions<V>;
  V x = input > 20.0f ? V{} + 20.0f : input;
  x = x < -20.0f ? V{} - 20.0f : x;
  const auto wide = __builtin_convertvector(x, typename C::Double);
  const auto grown = detail::expm1_double<typename C::Double, typename C::Long>(wide * 2.0);
  const V y = __builtin_convertvector(grown / (grown + 2.0), V);
  return input == 0.0f ? input : y;
}

template <class V>
[[gnu::always_inline]] inline V log_specials(const V& y, const V& x) {
  const V infinity = V{} + __builtin_inff();
  V result = x == infinity ? infinity : y;
  result = x == 0.0f ? -infinity : result;
  return (x < 0.0f) | (x != x) ? V{} + __builtin_nanf("") : result;
}

template <class V>
[[gnu::always_inline]] inline V vec_log(const V& x) {
  using C = Companions<V>;
  const auto wide = __builtin_convertvector(x, typename C::Double);  // float's subnormals are normal doubles
  return log_specials(
      __builtin_convertvector(detail::log_double<typename C::Double, typename C::Long>(wide), V), x);
}

template <class V>
[[gnu::always_inline]] inline V vec_log1p(const V& x) {
  using C = Companions<V>;
  using D = typename C::Double;
  const D wide = __builtin_convertvector(x, D);
  const D near = detail::log_series(wide / (wide + 2.0));  // exact where 1 + x would lose x
  const D far = detail::log_double<D, typename C::Long>(wide + 1.0);
  const D y = (wide > -0.25) & (wide < 0.4) ? near : far;
  const V shifted = x == -1.0f ? V{} : x < -1.0f ? V{} - 1.0f : x == __builtin_inff() ? x : x != x ? x : V{} + 1.0f;
  const V result = log_specials(__builtin_convertvector(y, V), shifted);
  return x == 0.0f ? x : result;
}

namespace detail {

// sin(x + quarters * pi/2). Arguments beyond 2^20 take libm's full reduction.
template <class V>
[[gnu::always_inline]] inline V sin_shifted(const V& x, int quarters, double (*exact)(double)) {
  using C = Companions<V>;
  using D = typename C::Double;
  using L = typename C::Long;
  const D wide = __builtin_convertvector(x, D);
  const D shifted = wide * 0.6366197723675814 + kRound;
  const D n = shifted - kRound;
  const D high = wide - n * 1.5707963267341256;      // pi/2 with 20 zero bits: n times it is exact
  const D r = high - n * 6.077100506506192e-11;
  const D z = r * r;
  D s = z * (1.0 / 6227020800.0) - 1.0 / 39916800;
  s = s * z + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  const D sine = r * z * s + r;
  D c = z * (-1.0 / 87178291200.0) + 1.0 / 479001600;
  c = c * z - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 0.5;
  const D cosine = z * c + 1.0;
  const L quadrant = bits<L>(shifted) + quarters;
  const D chosen = (quadrant & 1) != 0 ? cosine : sine;
  V y = __builtin_convertvector((quadrant & 2) != 0 ? -chosen : chosen, V);
  for (int lane = 0; lane < C::lanes; lane++) {
    if (!(__builtin_fabsf(x[lane]) < 1048576.0f)) y[lane] = static_cast<float>(exact(x[lane]));
  }
  return y;
}

}  // namespace detail

template <class V>
[[gnu::always_inline]] inline V vec_sin(const V& x) {
  const V y = detail::sin_shifted(x, 0, [](double a) { return std::sin(a); });
  return x == 0.0f ? x : y;
}

template <class V>
[[gnu::always_inline]] inline V vec_cos(const V& x) {
  return detail::sin_shifted(x, 1, [](double a) { return std::cos(a); });
}

}  // namespace specc
