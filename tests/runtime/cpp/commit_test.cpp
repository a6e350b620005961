#include <algorithm>
#include <set>
#include <vector>

#include "../../../runtime/cpp/core/engine/commit.h"
#include "check.h"
#include "tests.h"

using namespace specc;

namespace {

// Plain decoding: one token at a time, each looked at as it comes.
Commit one_by_one(const std::vector<int64_t>& tokens, const StopRules& rules, size_t request, size_t context) {
  const std::set<int64_t> eos(rules.eos.begin(), rules.eos.end()), stop(rules.stop.begin(), rules.stop.end());
  size_t kept = 0;
  for (const int64_t token : tokens) {
    if (request == 0) return {kept, Finish::kLength};
    if (context == 0) return {kept, Finish::kContext};
    if (stop.count(token) > 0) return {kept, Finish::kStop};
    ++kept, --request, --context;
    if (eos.count(token) > 0 && !rules.ignore_eos) return {kept, Finish::kStop};
  }
  if (request == 0) return {kept, Finish::kLength};
  return {kept, context == 0 ? Finish::kContext : Finish::kNone};
}

}  // namespace

void commit_test() {
  constexpr int64_t kEos = 7, kStop = 8, kPlain = 1;
  constexpr size_t kNever = 99;
  for (size_t count = 0; count <= 6; ++count) {
    for (size_t eos_at = 0; eos_at <= count; ++eos_at) {
      for (size_t stop_at = 0; stop_at <= count; ++stop_at) {
        std::vector<int64_t> tokens(count, kPlain);
        if (eos_at < count) tokens[eos_at] = kEos;
        if (stop_at < count) tokens[stop_at] = kStop;
        for (size_t request = 0; request <= count + 1; ++request) {
          for (size_t context = 0; context <= count + 1; ++context) {
            for (const bool ignore_eos : {false, true}) {
              const StopRules rules{{kEos}, {kStop}, ignore_eos};
              const Commit got = commit_round(tokens.data(), count, rules, request, context);
              const Commit expected = one_by_one(tokens, rules, request, context);
              CHECK_EQ(got.kept, expected.kept);
              CHECK(got.finish == expected.finish);
            }
          }
        }
      }
    }
  }
  const int64_t both[] = {kPlain, kEos};
  CHECK_EQ(commit_round(both, 2, {{kEos}, {kEos}, false}, kNever, kNever).kept, 1u);  // a stop token is not returned
  CHECK_EQ(commit_round(both, 2, {{}, {}, false}, kNever, kNever).kept, 2u);          // a model without EOS
  CHECK(commit_round(both, 2, {{kEos}, {}, false}, 2, 2).finish == Finish::kStop);    // stop before cap
}
