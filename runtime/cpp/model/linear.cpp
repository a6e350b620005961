// specc::linear(x, w, bias?, n, encoding): y = x w^T + bias for a packed w of any encoding.
#include "error.h"
#include "parallel.h"
#include "shim.h"
#include "weights.h"

namespace specc {
namespace {

// Leading dimensions as one: the distance between consecutive rows, or -1 if they are not evenly spaced.
int64_t row_stride(const Tensor& x) {
  int64_t stride = -1;
  int64_t rows = 1;
  for (int d = x.ndim - 2; d >= 0; d--) {
    if (x.sizes[d] == 1) continue;
    if (stride < 0) {
      stride = x.strides[d];
    } else if (x.strides[d] != stride * rows) {
      return -1;
    }
    rows *= x.sizes[d];
  }
  return stride < 0 ? x.size(1) : stride;
}

// A part should outlast the cost of waking a thread: a few microseconds.
void prepare(const WeightFormat& format, const LinearCall& call) {
  const int64_t parts = parts_for(call.rows, 1 + 32768 / (call.depth + 1));
  parallel(parts, [&](int32_t part) {
    const Share mine = share(call.rows, part, parts);
    format.prepare(call, mine.begin, mine.end);
  });
}

void compute(const WeightFormat& format, const LinearCall& call) {
  const int64_t tiles = (call.columns + kTileColumns - 1) / kTileColumns;
  const int64_t least = 1 + 65536 / call.encoding.tile_bytes(call.depth);
  const int64_t parts = slices_for(tiles, least);
  // Parts are of whole bundles, so that only the last has tiles over.
  const int64_t bundles = (tiles + format.together - 1) / format.together;
  parallel(parts, [&](int32_t part) {
    const Share mine = share(bundles, part, parts);
    const int64_t end = mine.end * format.together;
    format.linear(call, mine.begin * format.together, end < tiles ? end : tiles);
  });
}

}  // namespace

Tensor* linear(const Tensor& x, const Tensor& packed, const Tensor* bias, int64_t columns, const Encoding* encoding) {
  if (encoding == nullptr) return nullptr;
  const WeightFormat& format = weight_format(*encoding);
  if (x.dtype != SPECC_F32 || x.ndim < 1) {
    fail("linear: x is a %d-d tensor of %s, not f32 [.., K]", x.ndim, dtype_name(x.dtype));
    return nullptr;
  }
  const int64_t depth = x.size(1);
  if (!expect_packed("linear", *encoding, packed, columns, depth)) return nullptr;
  if (bias != nullptr && (bias->dtype != SPECC_F32 || bias->numel() != columns || !bias->is_contiguous())) {
    fail("linear: the bias must be %ld contiguous f32", (long)columns);
    return nullptr;
  }
  int64_t sizes[kMaxDims];
  for (int d = 0; d < x.ndim; d++) sizes[d] = x.sizes[d];
  sizes[x.ndim - 1] = columns;
  Tensor* y = new_empty(SPECC_F32, x.ndim, sizes);
  if (y == nullptr || y->numel() == 0) return y;

  int64_t stride = row_stride(x);
  Tensor* gathered = nullptr;
  if (stride < 0 || (depth > 1 && x.strides[x.ndim - 1] != 1)) {
    gathered = new_empty(SPECC_F32, x.ndim, x.sizes);
    if (gathered == nullptr) {
      release(y);
      return nullptr;
    }
    copy_elements(gathered, &x);
    stride = depth;
  }
  LinearCall call{*encoding, gathered == nullptr ? x.data<float>() : gathered->data<float>(), x.numel() / depth, depth,
                  stride, packed.data<char>(), bias == nullptr ? nullptr : bias->data<float>(), y->data<float>(),
                  columns, nullptr};
  Tensor* scratch = nullptr;
  if (const int64_t bytes = format.scratch_bytes(call); bytes > 0) {
    scratch = new_empty(SPECC_U8, 1, &bytes);
    if (scratch == nullptr) {
      release(gathered);
      release(y);
      return nullptr;
    }
    call.scratch = scratch->data<char>();
    prepare(format, call);
  }
  compute(format, call);
  release(scratch);
  release(gathered);
  return y;
}

}  // namespace specc

SPECC_SHIM(aoti_torch_cpu_linear)
(specc::Tensor* x, specc::Tensor* w, specc::Tensor** bias, int64_t n, const char* encoding, specc::Tensor** result)
    -> specc::Status {
  *result = specc::linear(*x, *w, bias == nullptr ? nullptr : *bias, n, specc::find_encoding(encoding));
  return *result == nullptr ? 1 : specc::kOk;
}
