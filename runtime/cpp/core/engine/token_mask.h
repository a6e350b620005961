// What a caller lets follow: a grammar's say in a round.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "specc.h"

namespace specc {

class TokenMask {
 public:
  // null: everything is allowed. rows: K+1 at most.
  void set(specc_mask_fn function, void* user, size_t vocab_size, size_t rows);
  explicit operator bool() const { return function_ != nullptr; }

  // Asks for the rows after tokens[0..count), of which the first `prompt` were given, and after each draft. Returns how
  // many drafts are allowed, one after the other. Throws Error(Mask) if the answer makes no sense.
  size_t ask(const int64_t* tokens, size_t prompt, size_t count, const int64_t* drafts, size_t n_drafts);
  const uint32_t* bits() const { return function_ == nullptr ? nullptr : bits_.data(); }
  size_t words() const { return words_; }

 private:
  specc_mask_fn function_ = nullptr;
  void* user_ = nullptr;
  size_t words_ = 0;
  std::vector<uint32_t> bits_;  // [rows, words]
};

}  // namespace specc
