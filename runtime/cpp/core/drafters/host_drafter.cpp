#include "host_drafter.h"

#include <numeric>

#include "ngram.h"
#include "structure.h"
#include "suffix.h"

namespace specc {
namespace {

// The one place that knows host drafters by name.
struct Maker {
  const char* name;
  std::unique_ptr<HostDrafter> (*make)(const DrafterSpec& spec);
};

constexpr Maker kMakers[] = {
    {"ngram",
     [](const DrafterSpec& spec) -> std::unique_ptr<HostDrafter> {
       return std::make_unique<NgramDrafter>(static_cast<size_t>(spec.prompt_lookup_min),
                                             static_cast<size_t>(spec.prompt_lookup_max));
     }},
    {"suffix",
     [](const DrafterSpec& spec) -> std::unique_ptr<HostDrafter> {
       return std::make_unique<SuffixDrafter>(
           SuffixOptions{static_cast<size_t>(spec.max_tree_depth), spec.max_spec_factor, spec.min_token_prob});
     }},
    {"mtp:structure",
     [](const DrafterSpec& spec) -> std::unique_ptr<HostDrafter> {
       return std::make_unique<StructureDrafter>(StructureOptions{
           static_cast<size_t>(spec.max_matches), static_cast<size_t>(spec.max_window), spec.min_similarity});
     }},
};

const Maker* maker_of(const std::string& name) {
  for (const auto& maker : kMakers) {
    if (name == maker.name) return &maker;
  }
  return nullptr;
}

}  // namespace

size_t HostDrafter::propose_tree(const int64_t* tokens, size_t count, size_t k, int64_t* draft, int64_t* follows) {
  const size_t found = propose(tokens, count, k, draft);
  std::iota(follows, follows + found, 0);
  return found;
}

void HostDrafter::see(const float*, size_t) {}

std::string buffer_of_host_drafter(const std::string& name) { return name == "mtp:structure" ? "structure" : ""; }

bool knows_host_drafter(const std::string& name) { return maker_of(name) != nullptr; }

std::unique_ptr<HostDrafter> make_host_drafter(const DrafterSpec& spec) {
  const Maker* maker = maker_of(spec.host_drafter);
  return maker == nullptr ? nullptr : maker->make(spec);
}

}  // namespace specc
