#include "commit.h"

#include <algorithm>

namespace specc {
namespace {

bool contains(const std::vector<int64_t>& ids, int64_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Commit commit_round(const int64_t* tokens, size_t count, const StopRules& rules, size_t room_in_request,
                    size_t room_in_context) noexcept {
  for (size_t kept = 0; kept <= count; ++kept) {
    if (kept == room_in_request) return {kept, Finish::kLength};
    if (kept == room_in_context) return {kept, Finish::kContext};
    if (kept == count) break;
    const int64_t token = tokens[kept];
    if (contains(rules.stop, token)) return {kept, Finish::kStop};
    if (!rules.ignore_eos && contains(rules.eos, token)) return {kept + 1, Finish::kStop};
  }
  return {count, Finish::kNone};
}

}  // namespace specc
