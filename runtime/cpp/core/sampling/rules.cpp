#include "rules.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "../../model/choose_part.h"
#include "../error.h"

namespace specc {

double ratio(double p, double q) { return q > 0 ? std::min(1.0, p / q) : 0; }

double block_ratio(double joint, double remain) {
  // With nothing to choose between (P = 1, p = q) the next row decides, and it keeps these drafts for certain.
  return joint >= 1 ? 1 : remain / (remain + 1 - joint);
}

Rules::Rules(int64_t vocab_size, size_t max_rows)
    : vocab_size_(static_cast<size_t>(vocab_size)),
      max_rows_(max_rows),
      row_logits_(vocab_size),
      filter_(vocab_size_) {}

void Rules::set(const SamplingParams& params) {
  params.check(static_cast<int64_t>(vocab_size_));
  params_ = params;
  row_logits_.set(params);
  if (params.filters()) filter_.reserve();
  if (params.rule == AcceptanceRule::kMatch) return;
  target_.reserve(vocab_size_);
  draft_.reserve(vocab_size_);
  draft_mass_.resize(vocab_size_);
}

void Rules::check(const RoundLogits& round) const {
  if (round.draft_count + 1 > max_rows_) {
    throw Error(Code::Internal, "a round has more rows than its sampler")
        .expected("at most " + std::to_string(max_rows_))
        .found(std::to_string(round.draft_count + 1));
  }
  for (size_t j = 0; j < round.draft_count; ++j) {
    const bool known = round.drafts[j] >= 0 && static_cast<size_t>(round.drafts[j]) < vocab_size_;
    const bool tree = round.parents == nullptr || (round.parents[j] >= 0 && static_cast<size_t>(round.parents[j]) <= j);
    if (known && tree) continue;
    throw Error(Code::Drafter, known ? "a draft continues no row before it" : "the drafter proposed an id out of range")
        .where("draft " + std::to_string(j))
        .found(std::to_string(known ? round.parents[j] : round.drafts[j]));
  }
  if (params_.rule == AcceptanceRule::kMatch || round.draft_count == 0) return;
  if (params_.rule == AcceptanceRule::kBlock && round.parents != nullptr) {
    throw Error(Code::Option, "block verification takes no trees").cure("use the rule match or rejection");
  }
  if (round.draft.law != DraftLaw::kCertain && round.draft.logits == nullptr) {
    throw Error(Code::Option, "drafts were drawn by chance, from what law is not known").cure("use the rule match");
  }
}

// The row with what it needs to be chosen from. Throws for NaN, and if no token is left.
Row Rules::row_of(const float* logits, bool filtered) {
  const Best best = greedy_part(logits, 0, static_cast<int64_t>(vocab_size_));
  if (best.any_nan) {
    throw Error(Code::NotANumber, "the model computed a NaN")
        .cure("run specc verify, which finds damaged files; check the checkpoint, and the dtype it was compiled to");
  }
  Row row{logits, vocab_size_, static_cast<float>(best.value), best.token, params_.temperature, nullptr};
  if (!(row.highest > -__builtin_inff())) {
    throw Error(Code::Option, "no token is allowed here").cure("ban fewer tokens, or check the grammar");
  }
  if (filtered && params_.filters()) row.kept = &filter_.keep(logits, row.highest, params_);
  return row;
}

Row Rules::target_row(const RoundLogits& round, size_t row) {
  const uint32_t* allowed = round.allowed == nullptr ? nullptr : round.allowed + row * round.allowed_words;
  return row_of(row_logits_.process(round.logits + row * round.stride, allowed), true);
}

void Rules::target_law(const RoundLogits& round, size_t row) {
  const Row from = target_row(round, row);
  target_.set(from.logits, vocab_size_, from.highest, from.temperature, from.kept);
}

// What draft j was drawn from, into draft_ and draft_mass_.
void Rules::draft_law(const RoundLogits& round, size_t j) {
  for (const int32_t id : draft_.ids) draft_mass_[static_cast<size_t>(id)] = 0;
  const DraftLogits& draft = round.draft;
  if (draft.law == DraftLaw::kCertain) {
    draft_.ids.assign(1, static_cast<int32_t>(round.drafts[j]));
    draft_.mass.assign(1, 1.0);
  } else {
    const bool all = draft.law == DraftLaw::kProcessed;
    const size_t parent = round.parents == nullptr ? j : static_cast<size_t>(round.parents[j]);
    const uint32_t* allowed = round.allowed == nullptr ? nullptr : round.allowed + parent * round.allowed_words;
    const Row from = row_of(row_logits_.process(draft, j, allowed, all), all);
    draft_.set(from.logits, vocab_size_, from.highest, from.temperature, from.kept);
  }
  for (size_t i = 0; i < draft_.ids.size(); ++i) draft_mass_[static_cast<size_t>(draft_.ids[i])] = draft_.mass[i];
}

// target_ := max(scale target_ - draft_, 0), normalised. Where rounding leaves nothing, the two are equal, drafts are kept,
// and whatever is here has no probability.
void Rules::take_from_target(double scale) {
  double total = 0;
  for (size_t i = 0; i < target_.ids.size(); ++i) {
    total += std::max(scale * target_.mass[i] - draft_mass_[static_cast<size_t>(target_.ids[i])], 0.0);
  }
  if (!(total > 0)) return;
  for (size_t i = 0; i < target_.ids.size(); ++i) {
    const double left = scale * target_.mass[i] - draft_mass_[static_cast<size_t>(target_.ids[i])];
    target_.mass[i] = std::max(left, 0.0) / total;
  }
}

// After one draft was not kept: those after it were drawn from what else there is.
void Rules::take_from_draft(int64_t token) {
  draft_mass_[static_cast<size_t>(token)] = 0;
  double total = 0;
  for (const int32_t id : draft_.ids) total += draft_mass_[static_cast<size_t>(id)];
  for (const int32_t id : draft_.ids) draft_mass_[static_cast<size_t>(id)] /= total > 0 ? total : 1;
}

void Rules::restart(const History& history, const int64_t* drafts, size_t count) {
  row_logits_.begin(history);
  for (size_t j = 0; j < count; ++j) row_logits_.push(drafts[j]);
}

int64_t Rules::own_choice(const RoundLogits& round, size_t row, size_t position, Chance& chance) {
  const Row from = target_row(round, row);
  return params_.temperature > 0 ? chance.choose(from, position) : from.best;
}

size_t Rules::run(const History& history, const RoundLogits& round, Chance& chance, int64_t* tokens, int32_t* rows) {
  check(round);
  row_logits_.begin(history);
  if (params_.temperature > 0 && params_.rule == AcceptanceRule::kBlock) {
    return block(history, round, chance, tokens, rows);
  }
  if (params_.temperature > 0 && params_.rule == AcceptanceRule::kRejection) {
    return reject(round, history.count - 1, chance, tokens, rows);
  }
  return match(round, history.count - 1, chance, tokens, rows);
}

namespace {

bool continues(const RoundLogits& round, size_t j, size_t row) {
  return (round.parents == nullptr ? j : static_cast<size_t>(round.parents[j])) == row;
}

}  // namespace

size_t Rules::match(const RoundLogits& round, size_t root, Chance& chance, int64_t* tokens, int32_t* rows) {
  size_t row = 0;
  for (size_t depth = 0;; ++depth) {
    const int64_t token = own_choice(round, row, root + 1 + depth, chance);
    tokens[depth] = token;
    rows[depth] = static_cast<int32_t>(row);
    size_t j = row;  // drafts that continue a row come after it
    while (j < round.draft_count && !(continues(round, j, row) && round.drafts[j] == token)) ++j;
    if (j >= round.draft_count) return depth;
    row_logits_.push(token);
    row = j + 1;
  }
}

// Drafts that continue the same row are tried in order (SpecInfer 2305.09781). They were drawn one after the other, none
// twice: after one that is not kept, the target's law is what is left of it, and the draft's law is without that token.
size_t Rules::reject(const RoundLogits& round, size_t root, Chance& chance, int64_t* tokens, int32_t* rows) {
  size_t row = 0;
  for (size_t depth = 0;; ++depth) {
    rows[depth] = static_cast<int32_t>(row);
    size_t kept = 0, tried = 0;
    for (size_t j = row; j < round.draft_count && kept == 0; ++j) {
      if (!continues(round, j, row)) continue;
      if (tried++ == 0) target_law(round, row);
      if (tried == 1 || round.draft.law == DraftLaw::kCertain) draft_law(round, j);
      const int64_t token = round.drafts[j];
      if (chance.happens(ratio(target_.of(token), draft_mass_[static_cast<size_t>(token)]), j)) {
        kept = j + 1;
      } else {
        take_from_target(1);
        take_from_draft(token);
      }
    }
    if (kept == 0) {
      tokens[depth] = tried > 0 ? chance.pick(target_, Purpose::kResidual, row)
                                : own_choice(round, row, root + 1 + depth, chance);
      return depth;
    }
    tokens[depth] = round.drafts[kept - 1];
    row_logits_.push(tokens[depth]);
    row = kept;
  }
}

size_t Rules::block(const History& history, const RoundLogits& round, Chance& chance, int64_t* tokens, int32_t* rows) {
  const size_t count = round.draft_count;
  double joint = 1, joint_kept = 1;
  size_t kept = 0;
  for (size_t row = 0; row <= count && joint > 0; ++row) {
    double remain = 0;
    if (row < count) {
      target_law(round, row);
      draft_law(round, row);
      for (size_t i = 0; i < target_.ids.size(); ++i) {
        remain += std::max(joint * target_.mass[i] - draft_mass_[static_cast<size_t>(target_.ids[i])], 0.0);
      }
    }
    if (row > 0 && chance.happens(row == count ? joint : block_ratio(joint, remain), row - 1)) {
      kept = row;
      joint_kept = joint;
    }
    if (row == count) break;
    const int64_t token = round.drafts[row];
    const double drawn = draft_mass_[static_cast<size_t>(token)];
    joint = drawn > 0 ? std::min(1.0, joint * target_.of(token) / drawn) : 0;
    row_logits_.push(token);
  }
  for (size_t row = 0; row <= kept; ++row) rows[row] = static_cast<int32_t>(row);
  std::copy_n(round.drafts, kept, tokens);
  restart(history, round.drafts, kept);
  if (kept == count) {
    tokens[kept] = own_choice(round, kept, history.count + kept, chance);
    return kept;
  }
  target_law(round, kept);
  draft_law(round, kept);
  take_from_target(joint_kept);
  tokens[kept] = chance.pick(target_, Purpose::kResidual, kept);
  return kept;
}

int64_t Rules::draft(const History& history, const int64_t* drafts, size_t j, const DraftLogits& draft,
                     const uint32_t* allowed, Chance& chance) {
  restart(history, drafts, j);
  const float* logits = row_logits_.process(draft, 0, allowed, true);
  if (greedy_part(logits, 0, static_cast<int64_t>(vocab_size_)).value == -__builtin_inf()) return -1;
  const Row from = row_of(logits, true);
  if (params_.temperature == 0) return from.best;
  if (params_.rule == AcceptanceRule::kMatch) return chance.choose(from, history.count + j);
  target_.set(from.logits, vocab_size_, from.highest, from.temperature, from.kept);
  return chance.pick(target_, Purpose::kDraft, j);
}

}  // namespace specc
