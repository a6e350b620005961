// Whether two types are one for a caller: the same, but for the names of enumerations and of what is opaque.
#pragma once
#include <type_traits>

template <class A, class B>
struct Agree {
  static constexpr bool value() {
    if constexpr (std::is_same_v<A, B>) {
      return true;
    } else if constexpr (std::is_const_v<A> != std::is_const_v<B>) {
      return false;
    } else if constexpr (std::is_const_v<A>) {
      return Agree<std::remove_const_t<A>, std::remove_const_t<B>>::value();
    } else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
      return Agree<std::remove_pointer_t<A>, std::remove_pointer_t<B>>::value();
    } else if constexpr (std::is_enum_v<A> && std::is_enum_v<B>) {
      return sizeof(A) == sizeof(B);
    } else {
      return std::is_class_v<A> && std::is_class_v<B>;
    }
  }
};

template <class A, class... As, class B, class... Bs>
struct Agree<A(As...), B(Bs...)> {
  static constexpr bool value() {
    if constexpr (sizeof...(As) != sizeof...(Bs)) {
      return false;
    } else {
      return Agree<A, B>::value() && (true && ... && Agree<As, Bs>::value());
    }
  }
};
