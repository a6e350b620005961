#pragma once

#include "../../../runtime/cpp/core/error.h"

// The number of the specc error that `body` throws; 0 if it throws none.
template <class Body>
int code_thrown(Body body) {
  try {
    body();
  } catch (const specc::Error& error) {
    return static_cast<int>(error.code());
  }
  return 0;
}
