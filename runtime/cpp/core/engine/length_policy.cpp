#include "length_policy.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "../error.h"

namespace specc {
namespace {

constexpr size_t kShortPrompt = 32, kLongPrompt = 2048;
constexpr size_t kShortDrafts = 2, kUsualDrafts = 5, kLongDrafts = 8;
constexpr char kNames[] = "adaptive, prompt-length, aimd, batch:N or priority";

}  // namespace

void Texts::join(double weight) {
  const std::lock_guard<std::mutex> guard(mutex_);
  weights_.push_back(weight);
}

void Texts::leave(double weight) noexcept {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = std::find(weights_.begin(), weights_.end(), weight);
  if (found == weights_.end()) return;
  *found = weights_.back();
  weights_.pop_back();
}

Texts::Others Texts::others() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto heaviest = std::max_element(weights_.begin(), weights_.end());
  return {weights_.size(), heaviest == weights_.end() ? 0 : *heaviest};
}

void Membership::join(double weight) {
  if (weight == weight_) return;
  leave();
  texts_.join(weight);
  weight_ = weight;
}

void Membership::leave() noexcept {
  if (weight_ > 0) texts_.leave(weight_);
  weight_ = 0;
}

void Window::observe(size_t drafted, size_t accepted, size_t most) {
  if (accepted < drafted) {
    drafts_ = std::max<size_t>(1, drafts_ / 2);
  } else {
    drafts_ = std::min(drafts_ + 1, most);
  }
}

LengthPolicy LengthPolicy::parse(std::string_view text) {
  LengthPolicy policy;
  const std::string_view name = text.substr(0, text.find(':'));
  const auto refuse = [&] {
    throw Error(Code::Option, "an option is out of range")
        .where("length_policy")
        .expected(kNames)
        .found(std::string(text));
  };
  if (name == "adaptive") policy.kind_ = Kind::kAdaptive;
  else if (name == "prompt-length") policy.kind_ = Kind::kPromptLength;
  else if (name == "aimd") policy.kind_ = Kind::kAimd;
  else if (name == "batch") policy.kind_ = Kind::kBatch;
  else if (name == "priority") policy.kind_ = Kind::kPriority;
  else refuse();
  if (name.size() == text.size()) return policy;
  const char *begin = text.data() + name.size() + 1, *end = text.data() + text.size();
  const auto read = std::from_chars(begin, end, policy.texts_);
  if (policy.kind_ != Kind::kBatch || read.ec != std::errc() || read.ptr != end || policy.texts_ < 1) refuse();
  return policy;
}

size_t LengthPolicy::most(size_t longest, const Facts& facts) const {
  size_t drafts = longest;
  if (kind_ == Kind::kPromptLength) {
    drafts = facts.prompt < kShortPrompt ? kShortDrafts : facts.prompt > kLongPrompt ? kLongDrafts : kUsualDrafts;
  } else if (kind_ == Kind::kAimd) {
    drafts = facts.window;
  } else if (kind_ == Kind::kBatch) {
    drafts = facts.texts.count > texts_ ? 0 : longest;
  } else if (kind_ == Kind::kPriority && facts.texts.heaviest > facts.weight) {
    drafts = static_cast<size_t>(static_cast<double>(longest) * facts.weight / facts.texts.heaviest);
  }
  return std::min(drafts, longest);
}

}  // namespace specc
