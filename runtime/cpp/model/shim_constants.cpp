// Compiled leaves look for a blob of constants that the linker would normally put next to them. Ours have none: weights
// and state come as inputs.
#include <cstdint>

extern "C" {
extern const uint8_t _binary_constants_bin_start[];
extern const uint8_t _binary_constants_bin_end[];
alignas(64) const uint8_t _binary_constants_bin_start[64] = {};
const uint8_t _binary_constants_bin_end[1] = {};
}
