// The characters that stand for bytes in byte-level vocabularies (GPT-2's table).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace specc::tok {

void append_byte_character(std::string& out, uint8_t byte);

// The bytes that `text` stands for, appended to `out`; false (and nothing appended) if it holds any other character.
bool append_named_bytes(std::string& out, std::string_view text);

}  // namespace specc::tok
