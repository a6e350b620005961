// Drafts that a graph draws, kept by p/q: the engine's texts against rounds written down from runtime/README.md and the
// papers. That such rounds have the target's law is added up in tests/runtime/test_acceptance_laws.py.

#include <algorithm>
#include <numeric>

#include "check.h"
#include "client.h"
#include "tests.h"

namespace {

using Law = std::vector<double>;
enum class Rule { kRejection, kBlock };

// Noise: that of a round (purpose 1: drafts, 2: what is kept, 3: what stands in), and of one row of it.
int64_t round_seed(int64_t seed, uint64_t purpose, size_t root) {
  const uint64_t own = tiny::splitmix64(static_cast<uint64_t>(seed) + purpose * 0xD1B54A32D192ED03u);
  return static_cast<int64_t>(tiny::splitmix64(tiny::splitmix64(own) ^ root));
}
double uniform(int64_t seed, uint64_t purpose, size_t root, size_t row) {
  const auto of_round = static_cast<uint64_t>(round_seed(seed, purpose, root));
  const uint64_t key = tiny::splitmix64(tiny::splitmix64(of_round) ^ row);
  return (static_cast<double>(tiny::splitmix64(key) >> 12) + 0.5) * 0x1p-52;
}

Law softmax(const float* logits, double temperature) {
  Law law(tiny::kValid);
  for (size_t v = 0; v < law.size(); ++v) law[v] = std::exp(static_cast<double>(logits[v]) / temperature);
  const double total = std::accumulate(law.begin(), law.end(), 0.0);
  for (double& each : law) each /= total;
  return law;
}

Law left_over(const Law& p, const Law& q, double scale) {
  Law left(p.size());
  for (size_t v = 0; v < p.size(); ++v) left[v] = std::max(scale * p[v] - q[v], 0.0);
  return left;
}
double sum(const Law& law) { return std::accumulate(law.begin(), law.end(), 0.0); }

int64_t pick(const Law& law, double u) {
  double below = 0;
  const double total = sum(law);
  for (size_t v = 0; v < law.size(); ++v) {
    below += law[v];
    if (below > u * total) return static_cast<int64_t>(v);
  }
  return -1;
}

struct Round {
  Tokens drafts;
  std::vector<Law> p, q;
};

size_t kept_one_by_one(const Round& round, int64_t seed, size_t root) {
  for (size_t j = 0; j < round.drafts.size(); ++j) {
    const auto draft = static_cast<size_t>(round.drafts[j]);
    if (!(uniform(seed, 2, root, j) < round.p[j][draft] / round.q[j][draft])) return j;
  }
  return round.drafts.size();
}

// Sun et al. 2403.10444, algorithm 2: how many, and P of them.
size_t kept_as_a_block(const Round& round, int64_t seed, size_t root, double* joint_kept) {
  const size_t count = round.drafts.size();
  size_t kept = 0;
  double joint = 1;
  *joint_kept = 1;
  for (size_t j = 0; j < count; ++j) {
    const auto draft = static_cast<size_t>(round.drafts[j]);
    joint = std::min(1.0, joint * round.p[j][draft] / round.q[j][draft]);
    double h = joint;
    if (j + 1 < count) {
      const double left = sum(left_over(round.p[j + 1], round.q[j + 1], joint));
      h = joint < 1 ? left / (left + 1 - joint) : 1;
    }
    if (uniform(seed, 2, root, j) < h) kept = j + 1, *joint_kept = joint;
  }
  return kept;
}

// `masked`: even tokens are forbidden. Drafts end before the first in which confidence is less than `least`.
Tokens decode(Tokens text, const Settings& settings, Rule rule, bool masked, double least) {
  const size_t prompt = text.size();
  const Tokens lengths = {0, 1, 2, 4};
  while (text.size() < prompt + settings.max_tokens) {
    const size_t root = text.size() - 1, room = prompt + settings.max_tokens - text.size();
    // No more drafts than the request has room for: the shortest length that reaches it.
    auto k = std::find(lengths.begin(), lengths.end(), settings.k);
    while (k > lengths.begin() && *(k - 1) >= static_cast<int64_t>(room) - 1) --k;
    Round round;
    Tokens longer = text;
    float row[tiny::kVocab];
    const auto target_row = [&] {
      tiny::logits(longer.data(), longer.size(), tiny::kSalt, row);
      for (int64_t v = 0; masked && v < tiny::kValid; v += 2) row[v] = -1e30f;
    };
    for (int64_t j = 0; j < *k; ++j) {
      if (tiny::confidence(longer.data(), longer.size()) < least) break;
      target_row();
      round.p.push_back(softmax(row, settings.temperature));
      tiny::draft_logits(longer.data(), longer.size(), tiny::kSalt, row);
      round.q.push_back(softmax(row, settings.temperature));
      round.drafts.push_back(tiny::choose(row, tiny::kValid, settings.temperature,
                                          round_seed(settings.seed, 1, root), static_cast<int64_t>(longer.size())));
      longer.push_back(round.drafts.back());
    }
    double joint = 1;
    const size_t kept = rule == Rule::kBlock ? kept_as_a_block(round, settings.seed, root, &joint)
                                             : kept_one_by_one(round, settings.seed, root);
    longer.resize(text.size() + kept);
    if (kept < round.drafts.size()) {
      const Law left = left_over(round.p[kept], round.q[kept], rule == Rule::kBlock ? joint : 1);
      longer.push_back(pick(left, uniform(settings.seed, 3, root, kept)));
    } else {
      target_row();
      const auto at = static_cast<int64_t>(longer.size());
      longer.push_back(tiny::choose(row, tiny::kValid, settings.temperature, settings.seed, at));
    }
    longer.resize(std::min(longer.size(), prompt + settings.max_tokens));
    text = longer;
  }
  return Tokens(text.begin() + static_cast<ptrdiff_t>(prompt), text.end());
}

size_t odd_alone(void*, const int64_t*, size_t, size_t, const int64_t* drafts, size_t n_drafts, uint32_t* mask,
                 size_t words) {
  size_t allowed = 0;
  while (allowed < n_drafts && drafts[allowed] % 2 == 1) ++allowed;
  for (size_t word = 0; word < (allowed + 1) * words; ++word) mask[word] = 0xAAAAAAAAu;
  return allowed;
}

}  // namespace

void drawn_test(const std::string& artifacts) {
  const Artifact artifact(artifacts + "/drawn");
  for (const Rule rule : {Rule::kRejection, Rule::kBlock}) {
    for (const auto& [masked, least] : std::vector<std::pair<bool, double>>{{false, 0}, {true, 0}, {false, 0.3}, {true, 0.3}}) {
      Client client(artifact);
      CHECK_EQ(specc_session_set_float(client.get(), "confidence_threshold", least), SPECC_OK);
      const char* name = rule == Rule::kBlock ? "block" : "rejection";
      CHECK_EQ(specc_session_set_text(client.get(), "acceptance_rule", name), SPECC_OK);
      if (masked) CHECK_EQ(specc_session_set_mask(client.get(), odd_alone, nullptr), SPECC_OK);
      double kept = 0, doubted = 0;
      for (int64_t seed = 0; seed < 12; ++seed) {
        for (const int64_t k : {0, 1, 2, 4}) {
          Settings settings;
          settings.k = k;
          settings.seed = seed;
          settings.temperature = seed % 2 == 0 ? 1.0 : 0.6;
          client.rewind(0);
          client.set(settings);
          const Tokens prompt = prompt_of(1 + static_cast<size_t>(seed));
          CHECK_EQ(client.append(prompt), SPECC_OK);
          const Tokens got = client.generate();
          CHECK_NOTE(got == decode(prompt, settings, rule, masked, least),
                     std::string(name) + ", K " + std::to_string(k) + ", seed " + std::to_string(seed) +
                         (masked ? ", masked: " : ": ") + specc_last_error());
          kept += client.stat("accepted_tokens");
          doubted += client.stat("cut_confidence");
        }
      }
      CHECK(kept > (masked ? 50 : 200));
      CHECK_EQ(doubted > 0, least > 0);
    }
  }
  // Greedy texts know no chance, whatever the rule.
  Client client(artifact);
  CHECK_EQ(specc_session_set_text(client.get(), "acceptance_rule", "block"), SPECC_OK);
  Settings settings;
  settings.k = 4;
  client.set(settings);
  CHECK_EQ(client.append(prompt_of(5)), SPECC_OK);
  CHECK(client.generate() == plain(prompt_of(5), settings, 64).tokens);
  // Nor do the target's own choices know of a cut.
  CHECK_EQ(specc_session_set_text(client.get(), "acceptance_rule", "match"), SPECC_OK);
  CHECK_EQ(specc_session_set_float(client.get(), "confidence_threshold", 0.5), SPECC_OK);
  settings.temperature = 1.3;
  client.rewind(0);
  client.set(settings);
  CHECK_EQ(client.append(prompt_of(5)), SPECC_OK);
  CHECK(client.generate() == plain(prompt_of(5), settings, 64).tokens);
  CHECK(client.stat("cut_confidence") > 0);
  const Artifact other(artifacts + "/model");
  Client without(other);
  CHECK_EQ(specc_session_set_float(without.get(), "confidence_threshold", 0.5), SPECC_INVALID);
  CHECK_EQ(specc_session_set_float(client.get(), "confidence_threshold", 1.5), SPECC_INVALID);
}
