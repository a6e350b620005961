#include "params.h"

#include <cmath>
#include <string>

#include "../error.h"

namespace specc {
namespace {

void require(bool right, const char* name, const char* expected, const std::string& found) {
  if (right) return;
  throw Error(Code::Option, "an option is out of range").where(name).expected(expected).found(found);
}

// Logits over a lower one are infinite: all alike.
constexpr double kLeastTemperature = 1e-30;

}  // namespace

void require_token(int64_t token, int64_t vocab_size, const char* name) {
  if (token >= 0 && token < vocab_size) return;
  throw Error(Code::TokenId, "a token id is out of range")
      .where(name)
      .expected("0 to " + std::to_string(vocab_size - 1))
      .found(std::to_string(token));
}

void SamplingParams::check(int64_t vocab_size) const {
  const auto text = [](double value) { return std::to_string(value); };
  require(std::isfinite(temperature) && (temperature == 0 || temperature >= kLeastTemperature), "temperature",
          "0, or a finite number from 1e-30 on", text(temperature));
  require(top_k >= 0, "top_k", ">= 0 (0: all)", std::to_string(top_k));
  require(top_p > 0 && top_p <= 1, "top_p", "above 0, up to 1", text(top_p));
  require(min_p >= 0 && min_p <= 1, "min_p", "0 to 1", text(min_p));
  require(std::isfinite(repetition_penalty) && repetition_penalty > 0, "repetition_penalty", "a finite number > 0",
          text(repetition_penalty));
  require(std::isfinite(frequency_penalty), "frequency_penalty", "a number", text(frequency_penalty));
  require(std::isfinite(presence_penalty), "presence_penalty", "a number", text(presence_penalty));
  require(min_tokens >= 0, "min_tokens", ">= 0", std::to_string(min_tokens));
  require(logprobs >= -1 && logprobs <= vocab_size, "logprobs", "-1 (none) to the vocabulary's size",
          std::to_string(logprobs));
  for (const auto& each : logit_bias) {
    require_token(each.token, vocab_size, "logit_bias");
    require(std::isfinite(each.bias), "logit_bias", "numbers", text(each.bias));
  }
  for (const int64_t token : banned) require_token(token, vocab_size, "banned");
  for (const int64_t token : eos) require_token(token, vocab_size, "eos");
}

bool SamplingParams::filters() const { return temperature > 0 && (top_k > 0 || top_p < 1 || min_p > 0); }

bool SamplingParams::counts() const {
  return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0;
}

bool SamplingParams::plain() const {
  return !filters() && !counts() && logit_bias.empty() && banned.empty() && min_tokens == 0 && logprobs < 0 &&
         (rule == AcceptanceRule::kMatch || temperature == 0);
}

}  // namespace specc
