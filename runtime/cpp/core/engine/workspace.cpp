#include "workspace.h"

#include <algorithm>
#include <string>

#include "../error.h"

namespace specc {
namespace {

size_t checked(const Manifest& manifest, const RoundTable& rounds, size_t texts) {
  if (texts <= 1) return 1;
  const auto most = rounds.score() == nullptr ? size_t{1} : static_cast<size_t>(manifest.model.max_num_seqs);
  if (texts > most) {
    throw Error(Code::Option, "the artifact has no room for so many texts in one call")
        .where("texts")
        .expected("1 to " + std::to_string(most))
        .found(std::to_string(texts))
        .cure("compile it with --max-num-seqs " + std::to_string(texts));
  }
  return texts;
}

}  // namespace

Workspace::Workspace(std::shared_ptr<Artifact> artifact, size_t texts)
    : artifact_(std::move(artifact)),
      most_rows_(checked(artifact_->manifest(), artifact_->rounds(), texts) * (artifact_->manifest().longest_draft() + 1)),
      state_(artifact_->manifest().state, artifact_->manifest().arena, artifact_->library()),
      inputs_(artifact_->manifest(), artifact_->library(), most_rows_),
      frame_(artifact_->library().api(), artifact_->weights(), state_.views()),
      taken_(std::max<size_t>(1, texts), false) {
  const Manifest& manifest = artifact_->manifest();
  const RoundTable& rounds = artifact_->rounds();
  const size_t block = manifest.longest_draft() + 1;
  inputs_.bind(rounds.prefill(), inputs_.chunk());  // rounds catch up with it over any gap
  if (rounds.extend() != nullptr) inputs_.bind(*rounds.extend(), block);
  for (const auto& by_depth : rounds.rounds()) {
    for (const Round& round : by_depth) {
      for (const Plan* plan : {round.plan, round.propose, round.verify, round.commit}) {
        if (plan != nullptr) inputs_.bind(*plan, block);
      }
    }
  }
  if (batched()) inputs_.bind(*rounds.score(), most_rows_);
  for (const auto& plan : artifact_->plans()) frame_.reserve(plan);
}

Place::Place(std::shared_ptr<Workspace> workspace) : workspace_(std::move(workspace)) {
  auto& taken = workspace_->taken_;
  const auto free = std::find(taken.begin(), taken.end(), false);
  if (free == taken.end()) {
    throw Error(Code::SessionState, "all texts of the batch are taken")
        .expected("at most " + std::to_string(taken.size()))
        .cure("close one of its sessions first");
  }
  *free = true;
  index_ = static_cast<size_t>(free - taken.begin());
}

int64_t Place::first_row() const {
  return static_cast<int64_t>(index_) * workspace_->artifact_->manifest().model.max_model_len;
}

}  // namespace specc
