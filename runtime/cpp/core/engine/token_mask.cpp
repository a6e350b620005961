#include "token_mask.h"

#include <algorithm>
#include <string>

#include "../error.h"

namespace specc {

void TokenMask::set(specc_mask_fn function, void* user, size_t vocab_size, size_t rows) {
  words_ = (vocab_size + 31) / 32;
  if (function != nullptr) bits_.resize(rows * words_);
  function_ = function;
  user_ = user;
}

size_t TokenMask::ask(const int64_t* tokens, size_t prompt, size_t count, const int64_t* drafts, size_t n_drafts) {
  std::fill(bits_.begin(), bits_.end(), ~uint32_t{0});
  const size_t allowed = function_(user_, tokens, prompt, count, drafts, n_drafts, bits_.data(), words_);
  if (allowed > n_drafts) {
    throw Error(Code::Mask, "the token mask failed, or allows more drafts than there are")
        .expected("at most " + std::to_string(n_drafts));
  }
  return allowed;
}

}  // namespace specc
