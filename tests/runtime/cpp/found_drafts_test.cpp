#include "../../../runtime/cpp/core/engine/found_drafts.h"

#include <random>
#include <string>

#include "check.h"
#include "tests.h"

using namespace specc;

namespace {

// Plays `rounds` in which the host always finds the longest length; returns how many were its own.
int played(double acceptance, double graph_rate, int rounds, unsigned seed) {
  const std::vector<int64_t> lengths = {0, 2, 8};
  const double seconds[] = {1, 1.05, 1.3};
  FoundDrafts found(lengths.size());
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  int own = 0;
  for (int round = 0; round < rounds; ++round) {
    const size_t index = found.choose(2, graph_rate);
    if (index == 0) continue;
    ++own;
    size_t accepted = 0;
    while (accepted < static_cast<size_t>(lengths[index]) && uniform(random) < acceptance) ++accepted;
    found.observe(index, accepted, seconds[index]);
  }
  return own;
}

}  // namespace

void found_drafts_test() {
  for (unsigned seed = 0; seed < 8; ++seed) {
    // 0.95: (1 - 0.95^9) / 0.05 / 1.3 = 5.7 tokens a unit of time; the graph gives 2.
    const int copied = played(0.95, 2, 400, seed);
    CHECK_NOTE(copied > 380, std::to_string(copied));
    // 0.2: 1.25 / 1.3 at 8 drafts, 1.24 / 1.05 at 2; it is left alone but for a try now and then.
    const int misled = played(0.2, 2, 400, seed);
    CHECK_NOTE(misled < 24, std::to_string(misled));
  }
  // What lost is tried again: acceptance may have changed.
  FoundDrafts found(2);
  for (int i = 0; i < 30; ++i) {
    if (found.choose(1, 2) == 1) found.observe(1, 0, 1);
  }
  int own = 0;
  for (int i = 0; i < 400; ++i) {
    if (found.choose(1, 2) != 1) continue;
    ++own;
    found.observe(1, 4, 1);
  }
  CHECK_NOTE(own > 200, std::to_string(own));
  CHECK(FoundDrafts(2).choose(0, 0) == 0);  // nothing was found
}
