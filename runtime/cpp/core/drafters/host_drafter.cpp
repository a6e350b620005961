#include "host_drafter.h"

#include "ngram.h"
#include "suffix.h"

namespace specc {

std::unique_ptr<HostDrafter> make_host_drafter(const DrafterSpec& spec) {
  if (!spec.host) return nullptr;
  if (spec.kind == "ngram") {
    return std::make_unique<NgramDrafter>(static_cast<size_t>(spec.prompt_lookup_min),
                                          static_cast<size_t>(spec.prompt_lookup_max));
  }
  if (spec.kind == "suffix") {
    return std::make_unique<SuffixDrafter>(
        SuffixOptions{static_cast<size_t>(spec.max_tree_depth), spec.max_spec_factor, spec.min_token_prob});
  }
  return nullptr;
}

}  // namespace specc
