#include "options.h"

#include <algorithm>
#include <string>
#include <vector>

#include "../dtype.h"
#include "../error.h"

namespace specc {
namespace {

constexpr double kMostWeight = 1e6;

[[noreturn]] void out_of_range(std::string_view name, std::string expected, std::string found) {
  throw Error(Code::Option, "an option is out of range")
      .where(std::string(name))
      .expected(std::move(expected))
      .found(std::move(found));
}

[[noreturn]] void unknown(std::string_view name, std::string known) {
  throw Error(Code::Option, "there is no such option").expected(std::move(known)).found(std::string(name));
}

template <class Table>
std::string names(const Table& table) {
  std::string text;
  for (const auto& option : table) text += (text.empty() ? "" : ", ") + std::string(option.name);
  return text;
}

size_t index_of(std::string_view name, int64_t value, const std::vector<int64_t>& choices) {
  if (value == -1) return kAdaptive;
  const auto found = std::find(choices.begin(), choices.end(), value);
  if (found == choices.end()) {
    out_of_range(name, "-1 (adaptive) or one of " + shape_text(choices), std::to_string(value));
  }
  return static_cast<size_t>(found - choices.begin());
}

struct IntOption {
  const char* name;
  int64_t SamplingParams::*field;
};
constexpr IntOption kInts[] = {
    {"logprobs", &SamplingParams::logprobs},
    {"min_tokens", &SamplingParams::min_tokens},
    {"seed", &SamplingParams::seed},
    {"top_k", &SamplingParams::top_k},
};

struct FloatOption {
  const char* name;
  double SamplingParams::*field;
};
constexpr FloatOption kFloats[] = {
    {"frequency_penalty", &SamplingParams::frequency_penalty},
    {"min_p", &SamplingParams::min_p},
    {"presence_penalty", &SamplingParams::presence_penalty},
    {"repetition_penalty", &SamplingParams::repetition_penalty},
    {"temperature", &SamplingParams::temperature},
    {"top_p", &SamplingParams::top_p},
};

struct RuleOption {
  const char* name;
  AcceptanceRule rule;
};
constexpr RuleOption kRules[] = {
    {"match", AcceptanceRule::kMatch},
    {"rejection", AcceptanceRule::kRejection},
    {"block", AcceptanceRule::kBlock},
};

struct SourceOption {
  const char* name;
  DraftSource source;
};
constexpr SourceOption kSources[] = {
    {"any", DraftSource::kAny},
    {"graph", DraftSource::kGraph},
    {"host", DraftSource::kHost},
};

}  // namespace

void require_pieces(const Manifest& manifest, std::string_view option) {
  if (manifest.in_pieces()) return;
  throw Error(Code::Option, "this artifact chooses tokens inside its rounds, which know temperature alone")
      .where(std::string(option))
      .cure("compile it again with this version of specc, and without --tree");
}

// A threshold that nothing is held against would be ignored.
static void require_confidence(const Manifest& manifest, std::string_view option) {
  for (const FunctionSpec& function : manifest.functions) {
    for (const ValueSpec& output : function.outputs) {
      if (output.name == "confidence_0") return;
    }
  }
  throw Error(Code::Option, "the drafter of this artifact does not foretell which drafts are kept")
      .where(std::string(option))
      .expected("a DSpark drafter with a confidence head")
      .found("drafter '" + manifest.drafter.kind + "'");
}

void Options::change(SamplingParams next, std::string_view name, const Manifest& manifest) {
  next.check(manifest.model.vocab_size);
  if (!next.plain()) require_pieces(manifest, name);
  sampling = std::move(next);
}

void Options::set(std::string_view name, int64_t value, const Manifest& manifest) {
  for (const auto& option : kInts) {
    if (name != option.name) continue;
    SamplingParams next = sampling;
    next.*option.field = value;
    return change(std::move(next), name, manifest);
  }
  if (name == "max_tokens") {
    if (value < 0) out_of_range(name, ">= 0", std::to_string(value));
    max_tokens = static_cast<size_t>(value);
  } else if (name == "ignore_eos") {
    if (value != 0 && value != 1) out_of_range(name, "0 or 1", std::to_string(value));
    rules.ignore_eos = value == 1;
  } else if (name == "guard_rounds") {
    if (value < 0) out_of_range(name, ">= 0", std::to_string(value));
    guard_rounds = static_cast<size_t>(value);
  } else if (name == "num_speculative_tokens") {
    length_index = index_of(name, value, manifest.draft_lengths);
  } else if (name == "prompt_logprobs") {
    if (value < -1 || value > manifest.model.vocab_size) {
      out_of_range(name, "-1 (none) to the vocabulary's size", std::to_string(value));
    }
    if (value >= 0) require_pieces(manifest, name);
    prompt_logprobs = value;
  } else if (name == "draft_depth") {
    depth_index = index_of(name, value, manifest.drafter.depths);
  } else {
    unknown(name, "max_tokens, ignore_eos, num_speculative_tokens, draft_depth, guard_rounds, prompt_logprobs, " + names(kInts));
  }
}

void Options::set(std::string_view name, double value, const Manifest& manifest) {
  for (const auto& option : kFloats) {
    if (name != option.name) continue;
    SamplingParams next = sampling;
    next.*option.field = value;
    return change(std::move(next), name, manifest);
  }
  if (name == "draft_weight") {
    if (!(value > 0 && value <= kMostWeight)) out_of_range(name, "above 0, at most 1e6", std::to_string(value));
    draft_weight = value;
    return;
  }
  if (name != "confidence_threshold") unknown(name, "confidence_threshold, draft_weight, " + names(kFloats));
  if (!(value >= 0 && value <= 1)) out_of_range(name, "0 to 1", std::to_string(value));
  if (value > 0) require_confidence(manifest, name);
  confidence = value;
}

void Options::set(std::string_view name, std::string_view value, const Manifest& manifest) {
  if (name == "length_policy") {
    const LengthPolicy policy = LengthPolicy::parse(value);
    if (!policy.plain() && manifest.draft_lengths.size() == 1) {
      throw Error(Code::Option, "this artifact drafts nothing, so no policy says how much")
          .where(std::string(name))
          .found(std::string(value))
          .cure("leave it out, or compile with another method than none");
    }
    length_policy = policy;
    return;
  }
  if (name == "draft_source") {
    for (const auto& option : kSources) {
      if (value != option.name) continue;
      if (option.source == DraftSource::kGraph && manifest.drafter.on_host()) {
        throw Error(Code::Option, "this artifact has no drafter in its graph")
            .where(std::string(name))
            .found(std::string(value))
            .cure("leave it out");
      }
      if (option.source == DraftSource::kHost && !manifest.drafter.on_host()) require_pieces(manifest, name);
      draft_source = option.source;
      return;
    }
    out_of_range(name, names(kSources), std::string(value));
  }
  if (name != "acceptance_rule") unknown(name, "acceptance_rule, draft_source, length_policy");
  for (const auto& option : kRules) {
    if (value != option.name) continue;
    SamplingParams next = sampling;
    next.rule = option.rule;
    return change(std::move(next), name, manifest);
  }
  out_of_range(name, names(kRules), std::string(value));
}

void Options::set(std::string_view name, std::vector<int64_t> ids, const Manifest& manifest) {
  if (name == "stop_token_ids") {
    for (const int64_t token : ids) require_token(token, manifest.model.vocab_size, "stop_token_ids");
    rules.stop = std::move(ids);
  } else if (name == "banned_token_ids") {
    SamplingParams next = sampling;
    next.banned = std::move(ids);
    change(std::move(next), name, manifest);
  } else {
    unknown(name, "stop_token_ids or banned_token_ids");
  }
}

void Options::set_logit_bias(std::vector<TokenBias> bias, const Manifest& manifest) {
  SamplingParams next = sampling;
  next.logit_bias = std::move(bias);
  change(std::move(next), "logit_bias", manifest);
}

}  // namespace specc
