#include "inputs.h"

#include <algorithm>
#include <new>
#include <string>

namespace specc {

const std::vector<InputSpec> kPrefillInputs = {
    {"tokens", SPECC_I64, kRows},
    {"positions", SPECC_I64, kRows},
    {"rows", SPECC_I64, kRows},
};
const std::vector<InputSpec> kExtendInputs = {
    {"next_tokens", SPECC_I64, kRows},
    {"positions", SPECC_I64, kRows},
    {"rows", SPECC_I64, kRows},
};
const std::vector<InputSpec> kRoundInputs = {
    {"root", SPECC_I64, 1},      {"previous", SPECC_I64, 1}, {"length", SPECC_I64, 1},
    {"first_row", SPECC_I64, 1}, {"tap_row", SPECC_I64, 1},  {"temperature", SPECC_F64, 1},
    {"seed", SPECC_I64, 1},      {"drafts", SPECC_I64, kDrafts}, {"parents", SPECC_I64, kBlock},
    {"depths", SPECC_I64, kBlock},
};

const std::vector<InputSpec> kVerifyInputs = {
    {"tokens", SPECC_I64, kBlock},
    {"positions", SPECC_I64, kBlock},
    {"rows", SPECC_I64, kBlock},
    {"parents", SPECC_I64, kBlock},
};

const std::vector<InputSpec> kScoreInputs = {
    {"tokens", SPECC_I64, kRows},
    {"positions", SPECC_I64, kRows},
    {"rows", SPECC_I64, kRows},
    {"parents", SPECC_I64, kRows},
};

const std::vector<InputSpec> kCommitInputs = {
    {"rows", SPECC_I64, kBlock},
    {"nodes", SPECC_I64, kBlock},
};

Inputs::Inputs(const Manifest& manifest, ModelLibrary& library, size_t score_rows)
    : tokens(std::max(static_cast<size_t>(manifest.model.prefill_chunk), score_rows)),
      positions(tokens.size()),
      rows(tokens.size()),
      drafts(static_cast<size_t>(std::max<int64_t>(1, manifest.draft_lengths.back()))),
      parents(score_rows),
      depths(drafts.size() + 1),
      nodes(depths.size()),
      chunk_(static_cast<size_t>(manifest.model.prefill_chunk)),
      library_(library) {}

Inputs::~Inputs() {
  const Turn turn(library_.turn());
  for (auto& [plan, bound] : bound_) {
    for (auto& views : bound.by_rows) {
      for (specc_tensor* view : views) library_.api().release(view);
    }
  }
}

void Inputs::bind(const Plan& plan, size_t usual_rows) {
  Bound& bound = bound_[&plan];
  for (const auto& input : plan.inputs) {
    bound.has_rows |= std::find(input.shape.begin(), input.shape.end(), kRows) != input.shape.end();
  }
  bound.by_rows.resize(bound.has_rows ? std::max(chunk_, usual_rows) + 1 : 1);
  const Turn turn(library_.turn());
  if (!bound.has_rows) views(plan, 0);
  for (size_t rows = 1; bound.has_rows && rows <= usual_rows; ++rows) views(plan, rows);
}

specc_tensor* const* Inputs::views(const Plan& plan, size_t rows) {
  Bound& bound = bound_.find(&plan)->second;
  Views& views = bound.by_rows[bound.has_rows ? rows : 0];
  if (views.size() != plan.inputs.size()) make(plan, rows, views);
  return views.data();
}

void Inputs::make(const Plan& plan, size_t rows, Views& views) {
  views.reserve(plan.inputs.size());
  for (size_t i = views.size(); i < plan.inputs.size(); ++i) {  // goes on where an earlier attempt ran out of memory
    const ValueSpec& input = plan.inputs[i];
    std::vector<int64_t> shape = input.shape;
    std::replace(shape.begin(), shape.end(), kRows, static_cast<int64_t>(rows));
    specc_tensor* view =
        library_.api().view(buffer(input.name), input.dtype, static_cast<int32_t>(shape.size()), shape.data());
    if (view == nullptr) throw std::bad_alloc();
    views.push_back(view);
  }
}

// The names are those of the tables above, which RoundTable has checked.
void* Inputs::buffer(const std::string& name) {
  if (name == "tokens" || name == "next_tokens") return tokens.data();
  if (name == "positions") return positions.data();
  if (name == "rows") return rows.data();
  if (name == "drafts") return drafts.data();
  if (name == "parents") return parents.data();
  if (name == "depths") return depths.data();
  if (name == "nodes") return nodes.data();
  if (name == "temperature") return &temperature;
  if (name == "previous") return &previous;
  if (name == "length") return &length;
  if (name == "first_row") return &first_row;
  if (name == "tap_row") return &tap_row;
  if (name == "seed") return &seed;
  return &root;
}

}  // namespace specc
