#include "weights.h"

#include "error.h"

namespace specc {

const WeightFormat* find_weight_format(const Tensor& packed) {
  static const WeightFormat* const kFormats[] = {&kWeightsF32};
  for (const WeightFormat* format : kFormats) {
    if (format->recognises(packed) && packed.is_contiguous()) return format;
  }
  fail("not a packed weight: a %d-d tensor of %s", packed.ndim, dtype_name(packed.dtype));
  return nullptr;
}

}  // namespace specc
