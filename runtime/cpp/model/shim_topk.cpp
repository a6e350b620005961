// The k greatest elements along the last dimension: how mixture-of-experts layers choose.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "error.h"
#include "shim.h"
#include "tensor.h"

using specc::kOk;
using specc::Status;
using specc::Tensor;

namespace {

constexpr int64_t kMostExperts = 4096;

// Whether a ranks before b: greater first, NaN as the greatest (as torch has it), the lower index in a tie.
bool ranks_before(const float* row, int64_t a, int64_t b) {
  const bool a_nan = std::isnan(row[a]), b_nan = std::isnan(row[b]);
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && row[a] != row[b]) return row[a] > row[b];
  return a < b;
}

}  // namespace

SPECC_SHIM(aoti_torch_cpu_topk)
(Tensor* self, int64_t k, int64_t dim, int32_t largest, int32_t, Tensor** values, Tensor** indices) -> Status {
  const int last = self->ndim - 1;
  if (self->dtype != SPECC_F32 || self->ndim < 1 || (dim != last && dim != -1) || !largest || !self->is_contiguous()) {
    return specc::fail("topk is built for the greatest of a contiguous f32 tensor's last dimension alone");
  }
  const int64_t width = self->sizes[last];
  if (k < 1 || k > width || width > kMostExperts) return specc::fail("topk: %ld of %ld", (long)k, (long)width);
  int64_t sizes[specc::kMaxDims];
  for (int d = 0; d < last; d++) sizes[d] = self->sizes[d];
  sizes[last] = k;
  *values = specc::new_empty(SPECC_F32, self->ndim, sizes);
  *indices = specc::new_empty(SPECC_I64, self->ndim, sizes);
  if (*values == nullptr || *indices == nullptr) return 1;
  int64_t order[kMostExperts];
  for (int64_t r = 0; r < self->numel() / width; r++) {
    const float* row = self->data<float>() + r * width;
    for (int64_t i = 0; i < width; i++) order[i] = i;
    std::partial_sort(order, order + k, order + width, [row](int64_t a, int64_t b) { return ranks_before(row, a, b); });
    for (int64_t i = 0; i < k; i++) {
      (*values)->data<float>()[r * k + i] = row[order[i]];
      (*indices)->data<int64_t>()[r * k + i] = order[i];
    }
  }
  return kOk;
}
