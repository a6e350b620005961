// UTF-8: decoding, encoding, repair. Safe on any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace specc::tok {

constexpr uint32_t kReplacement = 0xFFFD;

struct CodePoint {
  uint32_t value;
  uint32_t bytes;
};

// The character at `at` (which must be inside). Wrong bytes give U+FFFD and the length of the maximal wrong part.
CodePoint decode_wide(std::string_view text, size_t at);

inline CodePoint decode(std::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {byte, 1};
  return decode_wide(text, at);
}

// Where the character before `at` begins (at > 0).
inline size_t previous(std::string_view text, size_t at) {
  size_t start = at - 1;
  while (start > 0 && at - start < 4 && (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) --start;
  return start;
}

void append(std::string& out, uint32_t code_point);
bool is_utf8(std::string_view text);
bool is_ascii(std::string_view text);

// Every maximal wrong part becomes U+FFFD.
void append_repaired(std::string& out, std::string_view bytes);

}  // namespace specc::tok
