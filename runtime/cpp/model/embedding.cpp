// specc::embedding(tokens, w, n): rows of a packed matrix, so that tied models keep one copy of it.
#include "error.h"
#include "shim.h"
#include "weights.h"

namespace specc {

Tensor* embedding(const Tensor& tokens, const Tensor& packed, int64_t rows) {
  const WeightFormat* format = find_weight_format(packed);
  if (format == nullptr) return nullptr;
  if (tokens.dtype != SPECC_I64 || !tokens.is_contiguous() || tokens.ndim >= kMaxDims) {
    fail("embedding: tokens must be contiguous i64");
    return nullptr;
  }
  if (rows > packed.sizes[0] * kTileColumns) {
    fail("embedding: %ld rows from a weight of %ld tiles", (long)rows, (long)packed.sizes[0]);
    return nullptr;
  }
  const int64_t* ids = tokens.data<int64_t>();
  const int64_t count = tokens.numel();
  for (int64_t t = 0; t < count; t++) {
    if (ids[t] < 0 || ids[t] >= rows) {
      fail("embedding: token id %ld is outside the vocabulary of %ld", (long)ids[t], (long)rows);
      return nullptr;
    }
  }
  int64_t sizes[kMaxDims];
  for (int d = 0; d < tokens.ndim; d++) sizes[d] = tokens.sizes[d];
  sizes[tokens.ndim] = format->depth(packed);
  Tensor* out = new_empty(SPECC_F32, tokens.ndim + 1, sizes);
  if (out == nullptr) return nullptr;
  for (int64_t t = 0; t < count; t++) format->unpack_row(packed, ids[t], out->data<float>() + t * sizes[tokens.ndim]);
  return out;
}

}  // namespace specc

SPECC_SHIM(aoti_torch_cpu_embedding)
(specc::Tensor* tokens, specc::Tensor* w, int64_t n, specc::Tensor** result) -> specc::Status {
  *result = specc::embedding(*tokens, *w, n);
  return *result == nullptr ? 1 : specc::kOk;
}
