#include "weights.h"

#include "error.h"

namespace specc {

const WeightFormat* find_weight_format(const Encoding& encoding) {
  if (encoding.bits == 32) return &kWeightsF32;
  fail("no kernel reads %s yet", encoding.name);
  return nullptr;
}

}  // namespace specc
