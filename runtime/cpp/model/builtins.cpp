#include "builtins.h"

#include <cmath>

#include "cache.h"
#include "weights.h"

namespace specc {

Status expect(const char* name, const Call& call, int32_t n_in, int32_t n_out, int32_t n_attrs) {
  if (call.n_in == n_in && call.n_out == n_out && call.n_attrs == n_attrs) return kOk;
  return fail("%s takes %d inputs, %d outputs and %d attributes, not %d, %d and %d", name, n_in, n_out, n_attrs,
              call.n_in, call.n_out, call.n_attrs);
}

Status expect_tensor(const char* name, const Tensor* tensor, int32_t dtype, int64_t at_least) {
  if (tensor->dtype == dtype && tensor->numel() >= at_least && tensor->is_contiguous()) return kOk;
  return fail("%s: an input must be contiguous %s of %ld elements or more", name, dtype_name(dtype), (long)at_least);
}

Status expect_logits(const char* name, const Tensor& logits, int64_t valid) {
  if (logits.dtype != SPECC_F32 || logits.ndim != 2 || logits.strides[1] != 1) {
    return fail("%s: logits must be f32 [rows, vocabulary]", name);
  }
  if (valid < 1 || valid > logits.sizes[1]) {
    return fail("%s: a vocabulary of %ld in %ld logits", name, (long)valid, (long)logits.sizes[1]);
  }
  return kOk;
}

Status expect_sampling(const char* name, const Tensor* temperature, const Tensor* seed) {
  if (expect_tensor(name, temperature, SPECC_F64, 1) != kOk) return 1;
  if (expect_tensor(name, seed, SPECC_I64, 1) != kOk) return 1;
  const double heat = *temperature->data<double>();
  return heat >= 0 && !std::isinf(heat) ? kOk : fail("%s: a temperature of %g", name, heat);
}

namespace {

Status handed_out(const Call& call, Tensor* result) {
  call.out[0] = result;
  return result == nullptr ? 1 : kOk;
}

// The operators of compiled leaves, for plans and tests. Float attributes come as f64 tensors, optional tensors last.

Status run_linear(const Call& call) {  // x, w[, bias]; attrs: output features, number of the encoding
  if (expect("specc.linear", call, call.n_in == 3 ? 3 : 2, 1, 2) != kOk) return 1;
  return handed_out(call, linear(*call.in[0], *call.in[1], call.n_in == 3 ? call.in[2] : nullptr, call.attrs[0],
                                 find_encoding(call.attrs[1])));
}

Status run_embedding(const Call& call) {  // tokens, w; attrs: rows and columns of the matrix, number of the encoding
  if (expect("specc.embedding", call, 2, 1, 3) != kOk) return 1;
  return handed_out(
      call, embedding(*call.in[0], *call.in[1], call.attrs[0], call.attrs[1], find_encoding(call.attrs[2])));
}

Status run_cache_write(const Call& call) {  // cache, x, rows
  if (expect("specc.cache_write", call, 3, 0, 0) != kOk) return 1;
  return cache_write(*call.in[0], *call.in[1], *call.in[2]);
}

Status run_cache_write_shard(const Call& call) {  // cache, x, rows; attrs: the shard's first row
  if (expect("specc.cache_write_shard", call, 3, 0, 1) != kOk) return 1;
  return cache_write_shard(*call.in[0], *call.in[1], *call.in[2], call.attrs[0]);
}

// q, k, v, positions, rows, parents, scale f64, softcap f64[, sinks]; attrs: window, whether there are parents (else
// anything stands in their place).
Status run_cached_attention(const Call& call) {
  const char* name = "specc.cached_attention";
  if (expect(name, call, call.n_in == 9 ? 9 : 8, 1, 2) != kOk) return 1;
  if (expect_tensor(name, call.in[6], SPECC_F64, 1) != kOk) return 1;
  if (expect_tensor(name, call.in[7], SPECC_F64, 1) != kOk) return 1;
  const AttentionOptions options{*call.in[6]->data<double>(), call.attrs[0], *call.in[7]->data<double>(),
                                 call.n_in == 9 ? call.in[8] : nullptr};
  const Seen seen{*call.in[3], *call.in[4], call.attrs[1] != 0 ? call.in[5] : nullptr};
  return handed_out(call, cached_attention(*call.in[0], *call.in[1], *call.in[2], seen, options));
}

}  // namespace

const Builtin kBuiltins[] = {
    {"specc.positions", run_positions},
    {"specc.cat", run_cat},
    {"specc.rows", run_rows},
    {"specc.row", run_row},
    {"specc.pad_rows", run_pad_rows},
    {"specc.first_rows", run_first_rows},
    {"specc.masks", run_masks},
    {"specc.argmax", run_argmax},
    {"specc.accept", run_accept},
    {"specc.roots", run_roots},
    {"specc.take", run_take},
    {"specc.candidates", run_candidates},
    {"specc.cross", run_cross},
    {"specc.best", run_best},
    {"specc.prune_tree", run_prune_tree},
    {"specc.accept_tree", run_accept_tree},
    {"specc.cache_copy", run_cache_copy},
    {"specc.cache_move", run_cache_move},
    {"specc.linear", run_linear},
    {"specc.embedding", run_embedding},
    {"specc.cache_write", run_cache_write},
    {"specc.cache_write_shard", run_cache_write_shard},
    {"specc.cached_attention", run_cached_attention},
};
const int kBuiltinCount = sizeof kBuiltins / sizeof kBuiltins[0];

}  // namespace specc
