#include "artifact.h"

#include <cstdlib>
#include <cstring>

#include "artifact_files.h"
#include "cpu.h"
#include "error.h"

namespace specc {
namespace {

constexpr char kLibraryFile[] = "model.so";

bool hashes_wanted() {
  const char* value = std::getenv("SPECC_VERIFY_HASHES");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

// Code is mapped from this file, so it must be one the manifest vouches for; or the program was linked with the same.
void check_library(const Manifest& manifest, const Source& source) {
  for (const auto& file : manifest.files) {
    if (file.path != kLibraryFile) continue;
    const std::string build = source.linked_build();
    if (build.empty() || build == file.sha256) return;
    throw Error(Code::ModelRefused, "the program was linked with the code of another artifact")
        .where(source.name(kLibraryFile))
        .expected("specc_model_build " + file.sha256)
        .found(build)
        .cure("link the libmodel.a that lies beside these files");
  }
  throw Error(Code::Damaged, "the manifest lists no model.so")
      .where(source.name(kLibraryFile))
      .cure("compile the artifact again");
}

}  // namespace

std::shared_ptr<Artifact> Artifact::load(std::unique_ptr<Source> source, int32_t threads) {
  std::shared_ptr<Artifact> artifact(new Artifact);
  artifact->manifest_ = read_manifest(*source);
  const Manifest& manifest = artifact->manifest_;
  check_library(manifest, *source);
  check_files(manifest, *source, hashes_wanted());

  artifact->file_ = Safetensors(source->map(manifest.weights_file), source->name(manifest.weights_file));
  artifact->library_ = ModelLibrary::open(*source, manifest.isa, threads > 0 ? threads : usable_cores());
  artifact->source_ = std::move(source);
  artifact->weights_ = std::make_unique<WeightTable>(artifact->file_, *artifact->library_);
  for (const auto& function : manifest.functions) {
    artifact->plans_.push_back(compile_plan(function, manifest.state, *artifact->library_, *artifact->weights_));
  }
  artifact->rounds_ = RoundTable(manifest, artifact->plans_);
  artifact->round_costs_ = RoundCosts(manifest.draft_lengths.size());
  artifact->piece_costs_ = RoundCosts(manifest.draft_lengths.size());
  artifact->given_costs_ = RoundCosts(manifest.draft_lengths.size());
  return artifact;
}

const Plan* Artifact::plan(const std::string& name) const {
  for (const auto& plan : plans_) {
    if (plan.name == name) return &plan;
  }
  return nullptr;
}

}  // namespace specc
