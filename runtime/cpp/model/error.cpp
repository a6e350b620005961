#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace specc {
namespace {

thread_local char text[2048];  // fixed, so that reporting "out of memory" needs no memory

Status record(const char* format, va_list arguments) {
  vsnprintf(text, sizeof text, format, arguments);
  return 1;
}

}  // namespace

Status fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  record(format, arguments);
  va_end(arguments);
  return 1;
}

Status fail_unless_told(const char* format, ...) {
  if (text[0] != 0) return 1;
  va_list arguments;
  va_start(arguments, format);
  record(format, arguments);
  va_end(arguments);
  return 1;
}

void clear_error() { text[0] = 0; }

const char* error_text() { return text; }

}  // namespace specc
