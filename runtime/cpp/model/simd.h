// Vectors as GCC and Clang extensions: one source for AVX2, AVX-512 and NEON. A vector wider than the machine's
// registers is split by the compiler, so the result of a lane never depends on the ISA.
#pragma once
#include <cstdint>

namespace specc {

template <class T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(sizeof(T) * N)));
  typedef T unaligned __attribute__((vector_size(sizeof(T) * N), aligned(alignof(T)), may_alias));
};
template <class T, int N>
using Vector = typename VectorOf<T, N>::type;

using F4 = Vector<float, 4>;
using F8 = Vector<float, 8>;
using F16 = Vector<float, 16>;

// The widest float vector one register holds.
#if defined(__AVX512F__)
constexpr int kNativeLanes = 16;
#elif defined(__AVX2__)
constexpr int kNativeLanes = 8;
#else
constexpr int kNativeLanes = 4;
#endif
using NativeF = Vector<float, kNativeLanes>;

template <class V>
struct LanesOf;
template <>
struct LanesOf<F4> {
  static constexpr int value = 4;
};
template <>
struct LanesOf<F8> {
  static constexpr int value = 8;
};
template <>
struct LanesOf<F16> {
  static constexpr int value = 16;
};

template <class V>
[[gnu::always_inline]] inline V load(const float* from) {
  return *reinterpret_cast<const typename VectorOf<float, LanesOf<V>::value>::unaligned*>(from);
}
template <class V>
[[gnu::always_inline]] inline void store(float* to, const V& value) {
  *reinterpret_cast<typename VectorOf<float, LanesOf<V>::value>::unaligned*>(to) = value;
}

// The sum of eight lanes, always as ((0+4)+(2+6)) + ((1+5)+(3+7)).
[[gnu::always_inline]] inline float sum_lanes(const F8& v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

}  // namespace specc
