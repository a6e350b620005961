// Failures inside the engine: an exception that knows its code, and the one place that turns it into a specc_result.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "specc.h"

namespace specc {

enum class Code {
  NotAnArtifact = 501,
  Damaged = 502,
  TooNew = 503,
  WrongDevice = 504,
  File = 505,
  ModelRefused = 506,
  Binding = 507,
  Plan = 508,
  NoRuntime = 510,
  BadModel = 511,
  NoGpu = 515,
  Internal = 600,
  Option = 601,
  TokenId = 602,
  Context = 603,
  NotANumber = 604,
  NoTokenizer = 605,
  Drafter = 606,
  SessionState = 607,
  Memory = 608,
  Compute = 609,
  Mask = 610,
  Npu = 611,
  Guard = 613,
  Gpu = 615,
};

specc_result result_of(Code code) noexcept;

// throw Error(Code::File, "a file is shorter than the manifest says").where(path).expected("12 bytes").found("3
// bytes");
class Error : public std::exception {
 public:
  Error(Code code, std::string what) : code_(code), what_(std::move(what)) { compose(); }

  Error where(std::string text) && { return std::move(set(where_, std::move(text))); }
  Error expected(std::string text) && { return std::move(set(expected_, std::move(text))); }
  Error found(std::string text) && { return std::move(set(found_, std::move(text))); }
  Error cure(std::string text) && { return std::move(set(cure_, std::move(text))); }
  // What a model library says of a failure: found, but a text that begins with a code stands in place of all this.
  Error told(const char* text) &&;

  Code code() const noexcept { return code_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  Error& set(std::string& field, std::string text) {
    field = std::move(text);
    compose();
    return *this;
  }
  void compose();

  Code code_;
  std::string what_, where_, expected_, found_, cure_;
  std::string text_;
};

void set_last_error(const char* text) noexcept;
const char* last_error() noexcept;

// Runs `body` (which returns a specc_result) so that nothing but a result code leaves it.
template <class Body>
specc_result guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const Error& error) {
    set_last_error(error.what());
    return result_of(error.code());
  } catch (const std::bad_alloc&) {
    set_last_error("SPECC-E0608 out of memory");
    return SPECC_MEMORY;
  } catch (const std::exception& error) {
    try {
      set_last_error(Error(Code::Internal, std::string("internal error: ") + error.what()).what());
    } catch (...) {
      set_last_error("SPECC-E0600 internal error");
    }
    return SPECC_RUNTIME;
  } catch (...) {
    set_last_error("SPECC-E0600 internal error");
    return SPECC_RUNTIME;
  }
}

}  // namespace specc
