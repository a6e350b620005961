#pragma once

#include <cstddef>
#include <string>

namespace specc {

// Lower-case hexadecimal SHA-256 (FIPS 180-4).
std::string sha256_hex(const unsigned char* data, size_t size);

}  // namespace specc
