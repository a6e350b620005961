#include "trie.h"

namespace specc::tok {

Trie::Trie(Reader& reader, uint32_t values)
    : labels_(reader.array<uint8_t>()), values_(reader.array<uint32_t>()), first_(reader.array<uint32_t>()) {
  const size_t nodes = labels_.size;
  if (nodes == 0 || values_.size != nodes || first_.size != nodes + 1) damaged("a trie has no shape");
  for (size_t node = 0; node < nodes; ++node) {
    // Children come after their parent, so that no walk can go in circles.
    const uint32_t first = first_[node], last = first_[node + 1];
    if (first <= node || last < first || last > nodes) damaged("a trie is out of order");
    if (values_[node] != kNone && values_[node] >= values) damaged("a trie has a wrong value");
    for (uint32_t child = first + 1; child < last; ++child)
      if (labels_[child - 1] >= labels_[child]) damaged("a trie is out of order");
  }
}

uint32_t Trie::find(std::string_view word) const {
  uint32_t node = kRoot;
  for (char c : word) {
    node = step(node, static_cast<uint8_t>(c));
    if (node == kNone) return kNone;
  }
  return value(node);
}

}  // namespace specc::tok
