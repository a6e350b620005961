#include <random>
#include <string>
#include <vector>

#include "../../../runtime/cpp/core/engine/controller.h"
#include "check.h"
#include "tests.h"

using namespace specc;

namespace {

struct World {
  std::vector<int64_t> lengths;
  std::vector<double> seconds;
  double acceptance;
};

double tokens_per_second(const World& world, size_t index) {
  double tokens = 1, survival = 1;
  for (int64_t i = 0; i < world.lengths[index]; ++i) tokens += survival *= world.acceptance;
  return tokens / world.seconds[index];
}

// Plays `rounds` rounds and returns the expected tokens per second over the last half, by what was chosen.
double play(LengthController& controller, const World& world, int rounds, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  double tokens = 0, seconds = 0;
  for (int round = 0; round < rounds; ++round) {
    const size_t index = controller.choose();
    size_t accepted = 0;
    while (accepted < static_cast<size_t>(world.lengths[index]) && uniform(random) < world.acceptance) ++accepted;
    const double hiccup = uniform(random) < 0.01 ? 20 : 1;
    controller.observe(index, accepted, world.seconds[index] * (0.95 + 0.1 * uniform(random)) * hiccup);
    if (round < rounds / 2) continue;
    tokens += tokens_per_second(world, index) * world.seconds[index];
    seconds += world.seconds[index];
  }
  return tokens / seconds;
}

void check_settles(const World& world, size_t best) {
  for (size_t i = 0; i < world.lengths.size(); ++i)
    CHECK(tokens_per_second(world, i) <= tokens_per_second(world, best));
  for (unsigned seed = 0; seed < 8; ++seed) {
    LengthController controller(world.lengths);
    const double reached = play(controller, world, 2000, seed) / tokens_per_second(world, best);
    CHECK_NOTE(reached > 0.97, "best " + std::to_string(best) + ": " + std::to_string(reached));
  }
}

// Speculation that loses costs little, from the first round on, even where the first rounds are slow and others stop
// the clock now and then. The loss is in rounds of K = 0 over the first 128 tokens.
void check_gives_up(const World& world, double most) {
  double lost = 0;
  int late = 0;  // a round that stops the clock may delay the choice
  constexpr int kSeeds = 20;
  for (unsigned seed = 0; seed < kSeeds; ++seed) {
    LengthController controller(world.lengths);
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> uniform(0, 1);
    int tokens = 0;
    for (int round = 0; tokens < 128; ++round) {
      const size_t index = controller.choose();
      size_t accepted = 0;
      while (accepted < static_cast<size_t>(world.lengths[index]) && uniform(random) < world.acceptance) ++accepted;
      const double hiccup = uniform(random) < 0.02 ? 100 : round == 0 ? 3 : 1;
      controller.observe(index, accepted, world.seconds[index] * (0.95 + 0.1 * uniform(random)) * hiccup);
      tokens += static_cast<int>(accepted) + 1;
      lost += world.seconds[index] - static_cast<double>(accepted + 1);
      late += round == 16 && controller.current() != 0;
    }
  }
  CHECK(late <= 2);
  CHECK_NOTE(lost / kSeeds < most, std::to_string(lost / kSeeds));
}

// Where costs are known and no draft is ever right, a text of any length takes at most 2% longer than without drafts,
// and a quarter of a round.
void check_loses_little(const World& world) {
  RoundCosts costs(world.lengths.size());
  for (size_t i = 0; i < world.lengths.size(); ++i) costs.publish(i, world.seconds[i]);
  LengthController controller(world.lengths, &costs);
  double seconds = 0;
  for (int tokens = 1; tokens <= 5000; ++tokens) {
    const size_t index = controller.choose();
    controller.observe(index, 0, world.seconds[index]);
    seconds += world.seconds[index];
    CHECK_NOTE(seconds <= 1.02 * tokens + 0.25, std::to_string(tokens) + ": " + std::to_string(seconds));
  }
}

// ... and where every draft is right, only the first rounds are short.
void check_saves_at_once(const World& world) {
  RoundCosts costs(world.lengths.size());
  for (size_t i = 0; i < world.lengths.size(); ++i) costs.publish(i, world.seconds[i]);
  LengthController controller(world.lengths, &costs);
  int64_t tokens = 0;
  for (int round = 0; round < 6; ++round) {
    const size_t index = controller.choose();
    controller.observe(index, static_cast<size_t>(world.lengths[index]), world.seconds[index]);
    tokens += world.lengths[index] + 1;
  }
  CHECK_NOTE(tokens >= 25, std::to_string(tokens));
}

// A server of short requests: what one session paid for, the next knows.
void check_starts_from_shared_costs() {
  RoundCosts costs(3);
  const World slow{{0, 2, 4}, {1.0, 3.0, 5.0}, 0.3};
  LengthController first(slow.lengths, &costs);
  play(first, slow, 200, 1);
  CHECK(costs.seconds(0) > 0.5 && costs.seconds(1) > 2.0 && costs.seconds(1) < 5.0);
  LengthController second(slow.lengths, &costs);
  for (int round = 0; round < 16; ++round) {
    CHECK_EQ(second.choose(), 0u);
    second.observe(0, 0, 1.0);
  }

  // Acceptance is the text's and not shared: the next text may be easy.
  RoundCosts cheap(3);
  const World hard{{0, 2, 4}, {1.0, 1.05, 1.1}, 0.01};
  LengthController third(hard.lengths, &cheap);
  play(third, hard, 600, 1);
  CHECK_EQ(third.current(), 0u);
  LengthController fourth(hard.lengths, &cheap);
  CHECK(fourth.choose() > 0);
}

// A drafter that must catch up on every round without it, at 6% of the time it was left out: four times the share that
// probes may take, so each waits four times as long as the one before.
void check_pays_for_catching_up() {
  LengthController controller({0, 2, 4});
  int behind = 0, probes = 0, last_gap = 0;
  for (int round = 0; round < 20000; ++round) {
    const size_t index = controller.choose();
    controller.observe(index, 0, 1.0 + 0.6 * static_cast<double>(index), index > 0 ? 0.06 * behind : 0);
    if (index == 0) {
      ++behind;
      continue;
    }
    if (round >= 16 && ++probes > 1) {
      CHECK_NOTE(behind > 3 * last_gap, std::to_string(behind) + " after " + std::to_string(last_gap));
      last_gap = behind;
    }
    behind = 0;
  }
  CHECK_NOTE(probes >= 3 && probes <= 6, std::to_string(probes));
}

// Mean seconds until `tokens` tokens are there, in the first of some sessions that share costs, and in the later ones.
struct Spent {
  double first = 0, later = 0;
};
Spent spend(const World& world, int tokens) {
  constexpr int kServers = 100, kSessions = 5;
  Spent spent;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int server = 0; server < kServers; ++server) {
    RoundCosts costs(world.lengths.size());
    for (int session = 0; session < kSessions; ++session) {
      LengthController controller(world.lengths, &costs);
      double seconds = 0;
      for (int made = 0; made < tokens;) {
        const size_t index = controller.choose();
        size_t accepted = 0;
        while (accepted < static_cast<size_t>(world.lengths[index]) && uniform(random) < world.acceptance) ++accepted;
        controller.observe(index, accepted, world.seconds[index] * (0.95 + 0.1 * uniform(random)));
        seconds += world.seconds[index];
        made += static_cast<int>(accepted) + 1;
      }
      (session == 0 ? spent.first : spent.later) += seconds / (session == 0 ? 1 : kSessions - 1) / kServers;
    }
  }
  return spent;
}

// Why host drafters have K = 16 by default: whoever cannot use it pays for a round of it, once for all sessions.
void check_sixteen_is_worth_having(const std::vector<double>& seconds) {
  const std::vector<int64_t> with{0, 2, 4, 8, 16}, without{0, 2, 4, 8};
  for (const double acceptance : {0.0, 0.1, 0.3, 0.6}) {
    const Spent more = spend({with, seconds, acceptance}, 128), less = spend({without, seconds, acceptance}, 128);
    CHECK_NOTE(more.first < less.first + seconds[4], std::to_string(more.first - less.first));
    CHECK_NOTE(more.later < 1.02 * less.later, std::to_string(more.later / less.later));
  }
  const Spent more = spend({with, seconds, 1}, 512), less = spend({without, seconds, 1}, 512);
  CHECK_NOTE(more.later < 0.95 * less.later, std::to_string(more.later / less.later));
}

}  // namespace

void controller_test() {
  check_gives_up({{0, 2, 4}, {1.0, 1.6, 2.2}, 0.05}, 4);
  check_gives_up({{0, 2, 4}, {1.0, 3.0, 5.0}, 0}, 6);
  check_gives_up({{0, 1, 2, 4, 8}, {1.0, 1.3, 1.6, 2.2, 3.5}, 0.1}, 5);
  check_settles({{0, 2, 4}, {1.0, 1.1, 1.2}, 0.9}, 2);     // cheap and well accepted: the longest
  check_settles({{0, 2, 4}, {1.0, 1.3, 2.5}, 0.5}, 1);     // 1, 1.35, 0.775 tokens a second
  check_settles({{0, 2, 4}, {1.0, 1.6, 2.2}, 0.1}, 0);     // speculation loses: off
  check_settles({{0, 2, 4}, {1.0, 1.13, 1.13}, 0.05}, 0);  // even if it loses by little
  LengthController alone({0});
  CHECK_EQ(alone.choose(), 0u);
  alone.observe(0, 0, 1.0);

  const std::vector<double> int8{1.0, 1.09, 1.26, 1.89, 3.0}, int4{1.0, 1.11, 1.29, 2.17, 4.0};  // 1, 3, 5, 9, 17 rows
  for (const auto& seconds : {int8, int4}) {
    check_loses_little({{0, 2, 4, 8, 16}, seconds, 0});
    check_saves_at_once({{0, 2, 4, 8, 16}, seconds, 1});
  }
  check_loses_little({{0, 3}, {1.0, 9.0}, 0});  // a tree of many rows

  check_starts_from_shared_costs();

  check_pays_for_catching_up();

  check_sixteen_is_worth_having({1.0, 1.02, 1.06, 1.17, 1.5});  // seconds of 1, 3, 5, 9, 17 rows: float32
  check_sixteen_is_worth_having({1.0, 1.0, 1.31, 1.77, 2.4});   // int8

  // What was switched off is found again when the text becomes easy.
  LengthController controller({0, 2, 4});
  play(controller, {{0, 2, 4}, {1.0, 1.6, 2.2}, 0.05}, 300, 1);
  CHECK_EQ(controller.current(), 0u);
  play(controller, {{0, 2, 4}, {1.0, 1.2, 1.4}, 0.95}, 1500, 2);
  CHECK_EQ(controller.current(), 2u);

  // A drafter that finds nothing: every round is of length 0, whatever was chosen.
  LengthController idle({0, 2, 4});
  for (int i = 0; i < 500; ++i) {
    idle.choose();
    idle.observe(0, 0, 1.0);
  }

  DepthController depth({1, 2, 3, 5});
  const size_t start = depth.index();
  for (int i = 0; i < 19; ++i) depth.observe(4, 4);
  CHECK_EQ(depth.index(), start);  // dwells
  for (int i = 0; i < 400; ++i) depth.observe(4, 4);
  CHECK_EQ(depth.index(), 1u);  // depth 2 is the floor
  for (int i = 0; i < 400; ++i) depth.observe(4, 0);
  CHECK_EQ(depth.index(), 3u);
  DepthController none({});
  none.observe(4, 4);
  CHECK_EQ(none.index(), 0u);
}
