// Where code that throws meets a border that takes statuses: devices and graphs behind a model library.
#pragma once
#include <exception>
#include <new>

#include "core/error.h"
#include "error.h"

namespace specc {

// Runs what may throw, and records its text.
template <class Body>
Status recorded(Body&& body) noexcept {
  try {
    body();
    return kOk;
  } catch (const Error& error) {
    return fail("%s", error.what());
  } catch (const std::bad_alloc&) {
    return fail("SPECC-E0608 out of memory");
  } catch (const std::exception& error) {
    return fail("%s", error.what());
  }
}

}  // namespace specc
