// What a caller may set on a session.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "../manifest.h"
#include "commit.h"

namespace specc {

inline constexpr size_t kAdaptive = static_cast<size_t>(-1);

struct Options {
  size_t max_tokens = 128;
  size_t length_index = kAdaptive;  // into num_speculative_tokens
  size_t depth_index = kAdaptive;   // into drafter.depths
  int64_t seed = 0;
  double temperature = 0;
  StopRules rules;

  // By name; throw Error(Option) for unknown names and values out of range.
  void set(std::string_view name, int64_t value, const Manifest& manifest);
  void set(std::string_view name, double value);
};

}  // namespace specc
