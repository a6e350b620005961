// The built-in entries of plans: runtime/README.md has their table. Same shape as specc_model.run, inputs borrowed.
#pragma once
#include <cstdint>

#include "error.h"
#include "tensor.h"

namespace specc {

struct Call {
  Tensor** in;
  int32_t n_in;
  Tensor** out;
  int32_t n_out;
  const int64_t* attrs;
  int32_t n_attrs;
};

struct Builtin {
  const char* name;
  Status (*run)(const Call& call);
};

extern const Builtin kBuiltins[];
extern const int kBuiltinCount;

// The call has exactly these numbers of inputs, outputs and attributes; else fails with a text.
Status expect(const char* name, const Call& call, int32_t n_in, int32_t n_out, int32_t n_attrs);
// A contiguous tensor of this dtype and at least so many elements.
Status expect_tensor(const char* name, const Tensor* tensor, int32_t dtype, int64_t at_least);
// Logits f32 [rows, vocabulary], of which `valid` are tokens; rows may lie apart.
Status expect_logits(const char* name, const Tensor& logits, int64_t valid);
// What sampling reads: a temperature f64[1], 0 or more, and a seed i64[1].
Status expect_sampling(const char* name, const Tensor* temperature, const Tensor* seed);

// plan_builtins.cpp
Status run_positions(const Call& call);
Status run_rows(const Call& call);
Status run_cat(const Call& call);
Status run_row(const Call& call);
Status run_pad_rows(const Call& call);
Status run_first_rows(const Call& call);
Status run_masks(const Call& call);
Status run_cache_copy(const Call& call);
Status run_cache_move(const Call& call);
// accept.cpp
Status run_argmax(const Call& call);
Status run_accept(const Call& call);
// tree.cpp
Status run_roots(const Call& call);
Status run_take(const Call& call);
Status run_candidates(const Call& call);
Status run_cross(const Call& call);
Status run_best(const Call& call);
Status run_prune_tree(const Call& call);
Status run_accept_tree(const Call& call);

}  // namespace specc
