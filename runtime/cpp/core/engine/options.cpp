#include "options.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "../dtype.h"
#include "../error.h"

namespace specc {
namespace {

[[noreturn]] void out_of_range(std::string_view name, std::string expected, std::string found) {
  throw Error(Code::Option, "an option is out of range")
      .where(std::string(name))
      .expected(std::move(expected))
      .found(std::move(found));
}

[[noreturn]] void unknown(std::string_view name, const char* known) {
  throw Error(Code::Option, "there is no such option").expected(known).found(std::string(name));
}

size_t index_of(std::string_view name, int64_t value, const std::vector<int64_t>& choices) {
  if (value == -1) return kAdaptive;
  const auto found = std::find(choices.begin(), choices.end(), value);
  if (found == choices.end()) {
    out_of_range(name, "-1 (adaptive) or one of " + shape_text(choices), std::to_string(value));
  }
  return static_cast<size_t>(found - choices.begin());
}

}  // namespace

void Options::set(std::string_view name, int64_t value, const Manifest& manifest) {
  if (name == "max_tokens") {
    if (value < 0) out_of_range(name, ">= 0", std::to_string(value));
    max_tokens = static_cast<size_t>(value);
  } else if (name == "ignore_eos") {
    if (value != 0 && value != 1) out_of_range(name, "0 or 1", std::to_string(value));
    rules.ignore_eos = value == 1;
  } else if (name == "num_speculative_tokens") {
    length_index = index_of(name, value, manifest.draft_lengths);
  } else if (name == "draft_depth") {
    depth_index = index_of(name, value, manifest.drafter.depths);
  } else if (name == "seed") {
    seed = value;
  } else {
    unknown(name, "max_tokens, ignore_eos, num_speculative_tokens, draft_depth or seed");
  }
}

void Options::set(std::string_view name, double value) {
  if (name != "temperature") unknown(name, "temperature");
  if (!std::isfinite(value) || value < 0) out_of_range(name, ">= 0", std::to_string(value));
  temperature = value;
}

}  // namespace specc
