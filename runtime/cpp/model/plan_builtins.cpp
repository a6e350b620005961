// specc.positions, specc.rows, specc.cat, specc.row, specc.pad_rows, specc.first_rows, specc.masks, specc.cache_copy, specc.cache_move: the
// glue between compiled leaves.
#include <algorithm>
#include <vector>

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

Status run_pad_rows(const Call& call) {  // x; attrs: count
  if (expect("specc.pad_rows", call, 1, 1, 1) != kOk) return 1;
  const Tensor& x = *call.in[0];
  const int64_t count = call.attrs[0];
  if (x.ndim < 1 || x.sizes[0] < 1 || x.sizes[0] > count) {
    return fail("specc.pad_rows: %ld rows cannot become %ld", (long)(x.ndim < 1 ? 0 : x.sizes[0]), (long)count);
  }
  int64_t sizes[kMaxDims] = {}, again[kMaxDims] = {}, standing[kMaxDims] = {};
  std::copy_n(x.sizes, x.ndim, sizes);
  std::copy_n(x.sizes, x.ndim, again);
  std::copy_n(x.strides, x.ndim, standing);
  sizes[0] = count;
  again[0] = count - x.sizes[0];
  standing[0] = 0;
  Tensor* out = new_empty(x.dtype, x.ndim, sizes);
  if (out == nullptr) return 1;
  Tensor* last = new_view(&x, x.dtype, x.ndim, again, standing, x.offset + (x.sizes[0] - 1) * x.strides[0]);
  Tensor* first = new_view(out, x.dtype, x.ndim, x.sizes, out->strides, 0);
  Tensor* rest = new_view(out, x.dtype, x.ndim, again, out->strides, x.sizes[0] * out->strides[0]);
  const bool made = last != nullptr && first != nullptr && rest != nullptr;
  if (made) copy_elements(first, &x);
  if (made && again[0] > 0) copy_elements(rest, last);
  for (Tensor* view : {last, first, rest}) {
    if (view != nullptr) release(view);
  }
  if (!made) release(out);
  call.out[0] = made ? out : nullptr;
  return made ? kOk : 1;
}

Status run_first_rows(const Call& call) {  // x; attrs: count
  if (expect("specc.first_rows", call, 1, 1, 1) != kOk) return 1;
  const Tensor& x = *call.in[0];
  const int64_t count = call.attrs[0];
  if (x.ndim < 1 || count < 1 || count > x.sizes[0]) {
    return fail("specc.first_rows: %ld of %ld rows", (long)count, (long)(x.ndim < 1 ? 0 : x.sizes[0]));
  }
  if (fetch(call.in[0]) != kOk) return 1;
  int64_t sizes[kMaxDims] = {};
  std::copy_n(x.sizes, x.ndim, sizes);
  sizes[0] = count;
  call.out[0] = new_view(&x, x.dtype, x.ndim, sizes, x.strides, x.offset);
  return call.out[0] == nullptr ? 1 : kOk;
}

// positions, rows[, parents[, rows that are written]]; attrs: window, cache rows[, the first of them]
Status run_masks(const Call& call) {
  const int32_t given = std::clamp(call.n_in, 2, 4);
  if (expect("specc.masks", call, given, 2, call.n_attrs == 3 ? 3 : 2) != kOk) return 1;
  for (int32_t i = 0; i < call.n_in; i++) {
    if (expect_tensor("specc.masks", call.in[i], SPECC_I64, call.in[0]->numel()) != kOk) return 1;
  }
  constexpr float kHidden = -1e30F;  // finite: halves of it may still be added
  if (call.in[0]->numel() < 1) return fail("specc.masks: no rows");
  const int64_t count = call.in[0]->numel(), window = call.attrs[0], length = call.attrs[1];
  const bool shard = call.n_attrs == 3;  // of caches that lie on several devices
  const int64_t from = shard ? call.attrs[2] : 0;
  const int64_t* positions = call.in[0]->data<int64_t>();
  const int64_t* rows = call.in[1]->data<int64_t>();
  const int64_t* parents = call.n_in >= 3 ? call.in[2]->data<int64_t>() : nullptr;
  const int64_t* own_rows = call.n_in == 4 ? call.in[3]->data<int64_t>() : rows;
  const int64_t old_sizes[] = {count, length}, new_sizes[] = {count, count};
  call.out[0] = new_empty(SPECC_F32, 2, old_sizes);
  call.out[1] = new_empty(SPECC_F32, 2, new_sizes);
  if (call.out[0] == nullptr || call.out[1] == nullptr) return 1;
  std::fill_n(call.out[0]->data<float>(), count * length, kHidden);
  std::fill_n(call.out[1]->data<float>(), count * count, kHidden);
  const auto [lowest, highest] = std::minmax_element(own_rows, own_rows + count);
  std::vector<std::vector<int64_t>> seen(static_cast<size_t>(count));
  for (int64_t t = 0; t < count; t++) {
    const int64_t parent = parents == nullptr ? -1 : parents[t];
    if (positions[t] < 0 || positions[t] > rows[t] || (!shard && rows[t] >= length) || parent < -1 || parent >= t) {
      return fail("specc.masks: row %ld: position %ld, cache row %ld, parent %ld", (long)t, (long)positions[t],
                  (long)rows[t], (long)parent);
    }
    std::vector<int64_t>& mine = seen[static_cast<size_t>(t)];
    if (parent >= 0) {
      mine = seen[static_cast<size_t>(parent)];
      mine.push_back(rows[t]);
    } else {
      for (int64_t row = rows[t] - positions[t]; row <= rows[t]; row++) mine.push_back(row);
    }
    const size_t skipped = window > 0 && mine.size() > static_cast<size_t>(window) ? mine.size() - window : 0;
    for (size_t i = skipped; i < mine.size(); i++) {
      const bool within = *lowest <= mine[i] && mine[i] <= *highest;
      const int64_t* const end = own_rows + count;
      const int64_t* const own = within ? std::find(own_rows, end, mine[i]) : end;  // the first of equals
      if (own == end) {
        const int64_t at = mine[i] - from;
        if (at >= 0 && at < length) call.out[0]->data<float>()[t * length + at] = 0;
      } else if (from == 0) {  // new rows are seen by one shard, the first
        call.out[1]->data<float>()[t * count + (own - own_rows)] = 0;
      }
    }
  }
  return kOk;
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
