// Drafts of the host, which may be a tree: proposed, hung together, and the rows of an accepted path brought into line.

#include <algorithm>

#include "../error.h"
#include "results.h"
#include "session.h"

namespace specc {

// Whether the next round's drafts may be a tree. A caller's drafter gives chains; a mask is asked along one path, and
// block verification is of one.
bool Session::branches() const {
  const bool chain = callback_ != nullptr || mask_ || options_.sampling.rule == AcceptanceRule::kBlock;
  return !chain && artifact_->rounds().rounds().back().front().commit != nullptr;
}

// To a drafter that looks at more than tokens.
void Session::show_state() {
  const std::string wanted = buffer_of_host_drafter(artifact_->manifest().drafter.host_drafter);
  if (wanted.empty()) return;
  const auto& buffers = artifact_->manifest().state;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].name != wanted) continue;
    const auto width = static_cast<size_t>(buffers[i].shape[2]);
    drafter_->see(static_cast<const float*>(state_.data(i)) + static_cast<size_t>(first_row_) * width, width);
  }
}

// Fills drafts_, and how they hang together; returns how many there are.
size_t Session::propose(size_t k) {
  if (k == 0 || !host_drafts()) return 0;
  const Stopwatch watch;
  int64_t* draft = drafts_.data();
  const bool tree = branches();
  if (callback_ == nullptr) show_state();
  const size_t count =
      callback_ != nullptr ? callback_(callback_user_, committed_.data(), committed_.size(), k, draft)
      : tree ? drafter_->propose_tree(committed_.data(), committed_.size(), k, draft, parents_.data() + 1)
             : drafter_->propose(committed_.data(), committed_.size(), k, draft);
  const int64_t vocab_size = artifact_->manifest().model.vocab_size;
  const auto bad = [&](int64_t id) { return id < 0 || id >= vocab_size; };
  if (count > k || std::any_of(draft, draft + count, bad)) {
    throw Error(Code::Drafter, "the drafter proposed too many tokens, or ids out of range")
        .expected("at most " + std::to_string(k) + " ids below " + std::to_string(vocab_size))
        .found(std::to_string(count) + " ids");
  }
  hang(count, !tree);
  stats_.draft_s += watch.seconds();
  return count;
}

// Which draft follows which, and how deep each stands: of a chain, or of what the drafter said.
void Session::hang(size_t count, bool chain) {
  parents_[0] = -1;
  depths_[0] = 0;
  for (size_t j = 0; j < count; ++j) {
    int64_t& parent = parents_[j + 1];
    if (chain) parent = static_cast<int64_t>(j);
    if (parent < 0 || parent > static_cast<int64_t>(j)) {
      throw Error(Code::Drafter, "the drafter's tree is none")
          .where("draft " + std::to_string(j))
          .expected("a node before it, 0 to " + std::to_string(j))
          .found(std::to_string(parent));
    }
    depths_[j + 1] = depths_[static_cast<size_t>(parent)] + 1;
    draft_parents_[j] = static_cast<int32_t>(parent);
  }
}

// Drafts on the longest path of the round that was just played.
size_t Session::longest_path(const Round& round) const {
  if (round.commit == nullptr) return round.draft_length;
  const auto depths = depths_.begin();
  return static_cast<size_t>(*std::max_element(depths, depths + static_cast<ptrdiff_t>(round.draft_length) + 1));
}

// Moves what verify left at the rows of the accepted path to where the text has them. Returns the seconds.
double Session::commit_path(const Round& round) {
  const size_t n = root_position();
  const auto row = [&](size_t i) { return static_cast<int64_t>(i <= sampled_.accepted ? sampled_.rows[i] : i); };
  bool in_place = true;
  for (size_t i = 0; i <= round.draft_length; ++i) {
    inputs_.rows[i] = row_of(n + i);
    inputs_.nodes[i] = row(i);
    in_place = in_place && inputs_.nodes[i] == static_cast<int64_t>(i);
  }
  if (in_place) return 0;
  const Results results(frame_, artifact_->library());
  return run_piece(*round.commit, 0);
}

}  // namespace specc
