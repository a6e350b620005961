#include "error.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace specc {
namespace {

// A fixed buffer: recording a failure must not itself fail, and an idle thread pays nothing for it.
thread_local char last_error_text[4096];

}  // namespace

specc_result result_of(Code code) noexcept {
  switch (code) {
    case Code::Option:
    case Code::TokenId:
    case Code::Context:
    case Code::NoTokenizer:
    case Code::SessionState:
      return SPECC_INVALID;
    case Code::Memory:
      return SPECC_MEMORY;
    case Code::Internal:
    case Code::NotANumber:
    case Code::Drafter:
    case Code::Compute:
    case Code::Mask:
    case Code::Npu:
    case Code::Gpu:
    case Code::Guard:
      return SPECC_RUNTIME;
    default:
      return SPECC_ARTIFACT;
  }
}

Error Error::told(const char* text) && {
  constexpr char kMark[] = "SPECC-E";
  if (text == nullptr || *text == '\0') text = "no reason given";
  if (std::strncmp(text, kMark, sizeof kMark - 1) != 0) return std::move(set(found_, text));
  code_ = static_cast<Code>(std::atoi(text + sizeof kMark - 1));
  text_ = text;
  return std::move(*this);
}

void Error::compose() {
  char code[16];
  std::snprintf(code, sizeof code, "SPECC-E%04d ", static_cast<int>(code_));
  text_ = code + what_;
  const auto line = [this](const char* label, const std::string& text) {
    if (!text.empty()) text_ += std::string("\n  ") + label + ": " + text;
  };
  line("where", where_);
  line("expected", expected_);
  line("found", found_);
  line("cure", cure_);
}

void set_last_error(const char* text) noexcept {
  std::strncpy(last_error_text, text, sizeof last_error_text - 1);
  last_error_text[sizeof last_error_text - 1] = '\0';
}

const char* last_error() noexcept { return last_error_text; }

}  // namespace specc
