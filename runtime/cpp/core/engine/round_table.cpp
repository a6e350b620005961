#include "round_table.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "../dtype.h"
#include "../error.h"
#include "inputs.h"

namespace specc {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& where) {
  throw Error(Code::Plan, what).where("functions." + where).cure("compile the artifact again");
}

const Plan& require_plan(const std::vector<Plan>& plans, const std::string& name) {
  for (const auto& plan : plans) {
    if (plan.name == name) return plan;
  }
  fail("a function is missing", name);
}

const RoundSpec& require_round(const std::vector<RoundSpec>& rounds, int64_t length, int64_t depth) {
  for (const auto& round : rounds) {
    if (round.length == length && round.depth == depth) return round;
  }
  throw Error(Code::Plan, "a round is missing")
      .where("rounds")
      .expected("one with k " + std::to_string(length) + ", depth " + std::to_string(depth))
      .cure("compile the artifact again");
}

bool has(const ValueSpec& value, int32_t dtype, int64_t rows) {
  return value.dtype == dtype && value.shape == std::vector<int64_t>{rows};
}

void check_inputs(const Plan& plan, const std::vector<InputSpec>& known, size_t draft_length, bool host) {
  for (const auto& input : plan.inputs) {
    const std::string where = plan.name + "." + input.name;
    const auto spec = std::find_if(known.begin(), known.end(), [&](const auto& each) { return input.name == each.name; });
    const bool given = spec != known.end() && (spec->rows == kDrafts || spec->rows == kBlock);
    if (spec == known.end() || (given && !host)) fail("an input the engine does not know", where);
    const auto drafts = static_cast<int64_t>(draft_length);
    const int64_t rows = spec->rows == kDrafts ? drafts : spec->rows == kBlock ? drafts + 1 : spec->rows;
    if (!has(input, spec->dtype, rows)) fail("an input of another dtype or shape than agreed", where);
  }
}

size_t require_output(const Plan& plan, const char* name, int64_t rows) {
  const int index = plan.output(name);
  if (index < 0 || !has(plan.outputs[static_cast<size_t>(index)], SPECC_I64, rows)) {
    fail("an output is missing or of another dtype or shape than agreed", plan.name + "." + name);
  }
  return static_cast<size_t>(index);
}

size_t require_logits(const Plan& plan, const std::string& name, int64_t rows, int64_t vocab_size) {
  const int index = plan.output(name.c_str());
  const ValueSpec* logits = index < 0 ? nullptr : &plan.outputs[static_cast<size_t>(index)];
  if (logits == nullptr || logits->dtype != SPECC_F32 || logits->shape.size() != 2 || logits->shape[0] != rows ||
      logits->shape[1] < vocab_size) {
    fail("an output is missing or of another dtype or shape than agreed", plan.name + "." + name);
  }
  return static_cast<size_t>(index);
}

// The same round in pieces, for texts whose tokens the engine chooses.
void add_pieces(Round& round, const RoundSpec& spec, const std::vector<Plan>& plans,
                const std::vector<InputSpec>& known, const Manifest& manifest) {
  const auto drafts = static_cast<int64_t>(round.draft_length);
  round.verify = &require_plan(plans, spec.verify);
  check_inputs(*round.verify, kVerifyInputs, round.draft_length, true);
  round.logits_output = require_logits(*round.verify, "logits", drafts + 1, manifest.model.vocab_size);
  if (!spec.commit.empty()) {
    round.commit = &require_plan(plans, spec.commit);
    check_inputs(*round.commit, kCommitInputs, round.draft_length, true);
  }
  if (drafts == 0 || manifest.drafter.on_host()) return;
  round.propose = &require_plan(plans, spec.propose);
  check_inputs(*round.propose, known, round.draft_length, false);
  round.drafts_output = require_output(*round.propose, "drafts", drafts);
  if (round.propose->output("logits_0") < 0) return;  // an artifact of before
  for (int64_t j = 0; j < drafts; ++j) {
    const std::string name = "logits_" + std::to_string(j);
    const size_t output = require_logits(*round.propose, name, 1, manifest.model.vocab_size);
    round.draft_logits_outputs.push_back(output);
  }
  const auto least = [&](size_t columns, size_t output) {
    return std::min(columns, static_cast<size_t>(round.propose->outputs[output].shape[1]));
  };
  const auto& outputs = round.draft_logits_outputs;
  round.draft_columns = std::accumulate(outputs.begin(), outputs.end(), ~size_t{0}, least);
  if (round.propose->output("confidence_0") < 0) return;
  for (int64_t j = 0; j < drafts; ++j) {
    round.confidence_outputs.push_back(require_logits(*round.propose, "confidence_" + std::to_string(j), 1, 1));
  }
}

Round checked_round(const RoundSpec& spec, const std::vector<Plan>& plans, const Manifest& manifest) {
  const Plan& plan = require_plan(plans, spec.function);
  const auto draft_length = static_cast<size_t>(spec.length);
  const DrafterSpec& drafter = manifest.drafter;
  std::vector<InputSpec> known = kRoundInputs;
  const bool extends = draft_length > 0 && !drafter.extend.empty();
  if (extends) known.insert(known.end(), kExtendInputs.begin(), kExtendInputs.end());
  check_inputs(plan, known, draft_length, drafter.on_host());
  Round round;
  round.plan = &plan;
  round.draft_length = draft_length;
  round.nodes = static_cast<size_t>(spec.nodes);
  round.reads_taps = plan.input("tap_row") >= 0;
  round.extends = extends;
  round.tokens_output = require_output(plan, "tokens", static_cast<int64_t>(draft_length) + 1);
  round.accepted_output = require_output(plan, "accepted", 1);
  if (!spec.verify.empty()) add_pieces(round, spec, plans, known, manifest);
  const auto takes = [](const Plan* each, const char* name) { return each != nullptr && each->input(name) >= 0; };
  const bool tree = takes(&plan, "parents");
  if (tree != takes(&plan, "depths") || tree != takes(round.verify, "parents") || tree != (round.commit != nullptr)) {
    // (A tree that the graph gives has no pieces.)
    fail("a round whose drafts may be a tree lacks a part", plan.name);
  }
  return round;
}

}  // namespace

RoundTable::RoundTable(const Manifest& manifest, const std::vector<Plan>& plans)
    : prefill_(&require_plan(plans, "prefill")) {
  check_inputs(*prefill_, kPrefillInputs, 0, false);
  static const std::vector<int64_t> kNoDepths = {0};
  const DrafterSpec& drafter = manifest.drafter;
  if (!drafter.extend.empty()) {
    extend_ = &require_plan(plans, drafter.extend);
    check_inputs(*extend_, kExtendInputs, 0, false);
  }
  if (!manifest.score.empty()) {
    score_ = &require_plan(plans, manifest.score);
    check_inputs(*score_, kScoreInputs, 0, false);
    score_logits_ = require_logits(*score_, "logits", kRows, manifest.model.vocab_size);
    if (!manifest.in_pieces()) fail("a score is of use to rounds in pieces alone", score_->name);
  }
  for (const int64_t length : manifest.draft_lengths) {
    std::vector<Round> by_depth;
    for (const int64_t depth : length == 0 || drafter.depths.empty() ? kNoDepths : drafter.depths) {
      by_depth.push_back(checked_round(require_round(manifest.rounds, length, depth), plans, manifest));
    }
    Round given = by_depth.front();
    given.given = true;
    given.reads_taps = given.extends = false;
    given.propose = nullptr;
    given.draft_logits_outputs.clear();
    given.confidence_outputs.clear();
    given_.push_back(std::move(given));
    rounds_.push_back(std::move(by_depth));
  }
}

const Round& RoundTable::round(size_t length_index, size_t depth_index) const {
  const auto& by_depth = rounds_[length_index];
  return by_depth[by_depth.size() == 1 ? 0 : depth_index];
}

size_t RoundTable::within(size_t length_index, size_t room) const {
  while (length_index > 0) {
    const auto& rounds = rounds_[length_index];
    if (std::all_of(rounds.begin(), rounds.end(), [&](const Round& round) { return round.nodes <= room; })) break;
    --length_index;
  }
  return length_index;
}

}  // namespace specc
