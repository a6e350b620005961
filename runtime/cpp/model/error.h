// The one way a kernel or a shim function reports failure: a text kept for the thread, and a status that is not 0.
#pragma once
#include <cstdint>

namespace specc {

using Status = int32_t;  // 0 is success; the type the AOTInductor shim calls AOTITorchError
constexpr Status kOk = 0;

// Records a printf-style text and returns 1, so that a kernel can `return fail(...)`.
[[gnu::format(printf, 1, 2)]] Status fail(const char* format, ...);
// As fail, but keeps what is already recorded: the first text is nearest to the cause.
[[gnu::format(printf, 1, 2)]] Status fail_unless_told(const char* format, ...);
void clear_error();
const char* error_text();  // "" if nothing is recorded

}  // namespace specc
