#include "utf8.h"

namespace specc::tok {

namespace {

// Length of the right or maximal wrong part at `at`; `right` tells which, `value` holds a right character.
uint32_t scan(std::string_view text, size_t at, bool& right, uint32_t& value) {
  const auto byte = [&](size_t i) -> uint32_t { return static_cast<unsigned char>(text[i]); };
  const uint32_t lead = byte(at);
  right = true;
  value = lead;
  if (lead < 0x80) return 1;
  right = false;
  uint32_t more;
  uint32_t low = 0x80, high = 0xBF;  // bounds of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    more = 1;
    value = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    more = 2;
    value = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    more = 3;
    value = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return 1;
  }
  for (uint32_t i = 1; i <= more; ++i) {
    if (at + i >= text.size()) return i;
    const uint32_t next = byte(at + i);
    if (next < low || next > high) return i;
    low = 0x80;
    high = 0xBF;
    value = value << 6 | (next & 0x3F);
  }
  right = true;
  return more + 1;
}

}  // namespace

CodePoint decode_wide(std::string_view text, size_t at) {
  bool right;
  uint32_t value;
  const uint32_t bytes = scan(text, at, right, value);
  return {right ? value : kReplacement, bytes};
}

void append(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

bool is_ascii(std::string_view text) {
  for (char c : text)
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  return true;
}

bool is_utf8(std::string_view text) {
  bool right;
  uint32_t value;
  for (size_t at = 0; at < text.size();) {
    at += scan(text, at, right, value);
    if (!right) return false;
  }
  return true;
}

void append_repaired(std::string& out, std::string_view bytes) {
  if (is_utf8(bytes)) {
    out += bytes;
    return;
  }
  bool right;
  uint32_t value;
  for (size_t at = 0; at < bytes.size();) {
    const uint32_t length = scan(bytes, at, right, value);
    if (right)
      out += bytes.substr(at, length);
    else
      append(out, kReplacement);
    at += length;
  }
}

}  // namespace specc::tok
