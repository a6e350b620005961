// A loaded artifact: immutable but for what its sessions learn of its speed and of each other; shared by them.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/length_policy.h"
#include "engine/round_costs.h"
#include "engine/round_table.h"
#include "manifest.h"
#include "model_library.h"
#include "plan.h"
#include "safetensors.h"
#include "source.h"

namespace specc {

class Artifact {
 public:
  // threads: 0 takes the physical cores available. Checks everything that can be checked without running the model.
  static std::shared_ptr<Artifact> load(std::unique_ptr<Source> source, int32_t threads);

  const Source& source() const { return *source_; }
  const Manifest& manifest() const { return manifest_; }
  ModelLibrary& library() const { return *library_; }
  const std::vector<Plan>& plans() const { return plans_; }
  const Plan* plan(const std::string& name) const;
  const RoundTable& rounds() const { return rounds_; }
  // Of round functions, or of rounds in pieces, which cost more.
  RoundCosts& round_costs(bool in_pieces = false) const { return in_pieces ? piece_costs_ : round_costs_; }
  // Of rounds whose drafts are not the artifact's own, with the wait for them.
  RoundCosts& given_costs() const { return given_costs_; }
  Texts& texts() const { return texts_; }
  specc_tensor* const* weights() const { return weights_->views(); }

  // A place for the tokenizer, which is loaded at first use and by code this class does not know (tokenize_api.cpp).
  struct LazyTokenizer {
    std::mutex mutex;
    std::shared_ptr<const void> loaded;
  };
  LazyTokenizer& tokenizer() const { return tokenizer_; }

 private:
  Artifact() = default;

  std::unique_ptr<Source> source_;
  Manifest manifest_;
  Safetensors file_;
  std::shared_ptr<ModelLibrary> library_;
  std::unique_ptr<WeightTable> weights_;  // after what it borrows
  std::vector<Plan> plans_;
  RoundTable rounds_;
  mutable RoundCosts round_costs_, piece_costs_, given_costs_;
  mutable Texts texts_;  // that its sessions are making
  mutable LazyTokenizer tokenizer_;
};

}  // namespace specc
