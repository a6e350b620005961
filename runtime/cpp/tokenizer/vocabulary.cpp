#include "vocabulary.h"

namespace specc::tok {

Vocabulary::Vocabulary(Reader reader)
    : flags_(reader.array<uint8_t>()), offsets_(reader.array<uint32_t>()), blob_(reader.array<uint8_t>()) {
  reader.finish();
  if (flags_.size == 0 || offsets_.size != flags_.size + 1 || offsets_[flags_.size] != blob_.size)
    damaged("the vocabulary has no shape");
  for (size_t id = 0; id < flags_.size; ++id)
    if (offsets_[id] > offsets_[id + 1]) damaged("the vocabulary is out of order");
}

}  // namespace specc::tok
