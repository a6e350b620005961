// specc::embedding(tokens, w, n, k, encoding): rows of a packed matrix, so that tied models keep one copy of it.
#include "error.h"
#include "shim.h"
#include "weights.h"

namespace specc {

Tensor* embedding(const Tensor& tokens, const Tensor& packed, int64_t rows, int64_t depth, const Encoding* encoding) {
  if (encoding == nullptr) return nullptr;
  const WeightFormat& format = weight_format(*encoding);
  if (tokens.dtype != SPECC_I64 || !tokens.is_contiguous() || tokens.ndim >= kMaxDims) {
    fail("embedding: tokens must be contiguous i64");
    return nullptr;
  }
  if (!expect_packed("embedding", *encoding, packed, rows, depth)) return nullptr;
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
  sizes[tokens.ndim] = depth;
  Tensor* out = new_empty(SPECC_F32, tokens.ndim + 1, sizes);
  if (out == nullptr) return nullptr;
  for (int64_t t = 0; t < count; t++) {
    format.unpack_row(*encoding, packed.data<char>(), depth, ids[t], out->data<float>() + t * depth);
  }
  return out;
}

}  // namespace specc

SPECC_SHIM(aoti_torch_cpu_embedding)
(specc::Tensor* tokens, specc::Tensor* w, int64_t n, int64_t k, const char* encoding, specc::Tensor** result)
    -> specc::Status {
  *result = specc::embedding(*tokens, *w, n, k, specc::find_encoding(encoding));
  return *result == nullptr ? 1 : specc::kOk;
}
