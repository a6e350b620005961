// Which tokens of a round become part of the text. The one place where stops and caps are decided, for every method.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specc {

enum class Finish { kNone, kStop, kLength, kContext };

struct StopRules {
  std::vector<int64_t> eos;   // the token is kept and ends generation
  std::vector<int64_t> stop;  // the token is dropped and ends generation
  bool ignore_eos = false;
};

struct Commit {
  size_t kept = 0;  // leading tokens of the round that are committed
  Finish finish = Finish::kNone;
};

// tokens[0..count) are the round's new tokens (accepted drafts and the one that follows). Nothing after a stop is kept,
// and never more than `room_in_request` or `room_in_context`. What comes first decides the reason; on the same token a
// stop wins over the request's cap, and that over the context's.
Commit commit_round(const int64_t* tokens, size_t count, const StopRules& rules, size_t room_in_request,
                    size_t room_in_context) noexcept;

}  // namespace specc
