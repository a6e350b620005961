#include "byte_alphabet.h"

#include <array>

#include "utf8.h"

namespace specc::tok {

namespace {

struct Alphabet {
  std::array<uint16_t, 256> character{};
  std::array<int16_t, 512> byte{};
  Alphabet() {
    byte.fill(-1);
    uint16_t hidden = 256;
    for (uint16_t b = 0; b < 256; ++b) {
      const bool shown = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      character[b] = shown ? b : hidden++;
      byte[character[b]] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet table;
  return table;
}

}  // namespace

void append_byte_character(std::string& out, uint8_t byte) { append(out, alphabet().character[byte]); }

bool append_named_bytes(std::string& out, std::string_view text) {
  const size_t start = out.size();
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode(text, at);
    if (c.value >= 512 || alphabet().byte[c.value] < 0) {
      out.resize(start);
      return false;
    }
    out += static_cast<char>(alphabet().byte[c.value]);
    at += c.bytes;
  }
  return true;
}

}  // namespace specc::tok
