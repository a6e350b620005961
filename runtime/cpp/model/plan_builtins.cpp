// specc.positions, specc.rows, specc.cat, specc.row, specc.cache_copy, specc.cache_move: the glue between compiled leaves.
#include <algorithm>

#include "builtins.h"
#include "cache.h"

namespace specc {

Status run_positions(const Call& call) {  // start; attrs: count, offset
  if (expect("specc.positions", call, 1, 1, 2) != kOk) return 1;
  if (expect_tensor("specc.positions", call.in[0], SPECC_I64, 1) != kOk) return 1;
  const int64_t count = call.attrs[0], texts = call.in[0]->numel();
  if (count < 0) return fail("specc.positions: a count of %ld", (long)count);
  const int64_t size = count * texts;
  Tensor* out = call.out[0] = new_empty(SPECC_I64, 1, &size);
  if (out == nullptr) return 1;
  for (int64_t i = 0; i < size; i++) {
    const int64_t start = call.in[0]->data<int64_t>()[i / count] + call.attrs[1];
    out->data<int64_t>()[i] = std::max<int64_t>(0, start + i % count);
  }
  return kOk;
}

Status run_rows(const Call& call) {  // positions, first
  if (expect("specc.rows", call, 2, 1, 0) != kOk) return 1;
  if (expect_tensor("specc.rows", call.in[0], SPECC_I64, 0) != kOk) return 1;
  if (expect_tensor("specc.rows", call.in[1], SPECC_I64, 1) != kOk) return 1;
  const int64_t size = call.in[0]->numel(), texts = call.in[1]->numel();
  if (size % texts != 0) return fail("specc.rows: %ld positions of %ld texts", (long)size, (long)texts);
  Tensor* out = call.out[0] = new_empty(SPECC_I64, 1, &size);
  if (out == nullptr) return 1;
  for (int64_t i = 0; i < size; i++) {
    out->data<int64_t>()[i] = call.in[0]->data<int64_t>()[i] + call.in[1]->data<int64_t>()[i / (size / texts)];
  }
  return kOk;
}

Status run_cat(const Call& call) {  // tensors of equal dtype and row shape
  if (call.n_in < 1) return fail("specc.cat: no inputs");
  if (expect("specc.cat", call, call.n_in, 1, 0) != kOk) return 1;
  const Tensor& first = *call.in[0];
  int64_t sizes[kMaxDims] = {};
  if (first.ndim < 1) return fail("specc.cat: the inputs have no rows");
  std::copy_n(first.sizes, first.ndim, sizes);
  sizes[0] = 0;
  for (int32_t i = 0; i < call.n_in; i++) {
    const Tensor& part = *call.in[i];
    if (part.dtype != first.dtype || part.ndim != first.ndim ||
        !std::equal(part.sizes + 1, part.sizes + part.ndim, first.sizes + 1)) {
      return fail("specc.cat: input %d has another dtype or row shape", i);
    }
    sizes[0] += part.sizes[0];
  }
  Tensor* out = new_empty(first.dtype, first.ndim, sizes);
  if (out == nullptr) return 1;
  int64_t row = 0;
  for (int32_t i = 0; i < call.n_in; i++) {
    const Tensor& part = *call.in[i];
    Tensor* target = new_view(out, out->dtype, part.ndim, part.sizes, out->strides, row * out->strides[0]);
    if (target == nullptr) {
      release(out);
      return 1;
    }
    copy_elements(target, &part);
    release(target);
    row += part.sizes[0];
  }
  call.out[0] = out;
  return kOk;
}

Status run_row(const Call& call) {  // x, index
  if (expect("specc.row", call, 2, 1, 0) != kOk) return 1;
  if (expect_tensor("specc.row", call.in[1], SPECC_I64, 1) != kOk) return 1;
  const Tensor& x = *call.in[0];
  if (x.ndim < 1 || x.sizes[0] < 1) return fail("specc.row: no rows to take one from");
  const int64_t index = std::clamp<int64_t>(*call.in[1]->data<int64_t>(), 0, x.sizes[0] - 1);
  int64_t sizes[kMaxDims] = {};
  std::copy_n(x.sizes, x.ndim, sizes);
  sizes[0] = 1;
  Tensor* row = new_view(&x, x.dtype, x.ndim, sizes, x.strides, x.offset + index * x.strides[0]);
  if (row == nullptr) return 1;
  // A copy: x may be a state buffer that is written again before the row is read.
  Tensor* out = call.out[0] = new_empty(x.dtype, x.ndim, sizes);
  if (out != nullptr) copy_elements(out, row);
  release(row);
  return out == nullptr ? 1 : kOk;
}

Status run_cache_move(const Call& call) {  // cache, source, target
  if (expect("specc.cache_move", call, 3, 0, 0) != kOk) return 1;
  return cache_move(*call.in[0], *call.in[1], *call.in[2]);
}

Status run_cache_copy(const Call& call) {  // x, state
  if (expect("specc.cache_copy", call, 2, 0, 0) != kOk) return 1;
  return cache_copy(*call.in[0], *call.in[1]);
}

}  // namespace specc
