#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "../../../runtime/cpp/core/drafters/ngram.h"
#include "../../../runtime/cpp/core/drafters/suffix.h"
#include "check.h"
#include "tests.h"

using namespace specc;
using Tokens = std::vector<int64_t>;

namespace {

template <class Drafter>
Tokens propose(Drafter& drafter, const Tokens& text, size_t k) {
  Tokens draft(k, -1);
  draft.resize(drafter.propose(text.data(), text.size(), k, draft.data()));
  return draft;
}

// By scanning: the longest n, then the latest place.
Tokens ngram_by_scan(const Tokens& text, size_t min, size_t max, size_t k) {
  for (size_t n = max; n >= min && n > 0; --n) {
    if (n >= text.size()) continue;
    for (size_t after = text.size() - 1; after >= n; --after) {
      if (!std::equal(text.end() - static_cast<ptrdiff_t>(n), text.end(),
                      text.begin() + static_cast<ptrdiff_t>(after - n)))
        continue;
      Tokens longer = text;
      for (size_t j = 0; j < k; ++j) longer.push_back(longer[after + j]);
      return Tokens(longer.end() - static_cast<ptrdiff_t>(k), longer.end());
    }
  }
  return {};
}

// What followed `pattern` in the text: token -> (count, latest place).
std::map<int64_t, std::pair<size_t, size_t>> followers(const Tokens& text, const Tokens& pattern) {
  std::map<int64_t, std::pair<size_t, size_t>> result;
  for (size_t i = 0; i + pattern.size() < text.size(); ++i) {
    if (!std::equal(pattern.begin(), pattern.end(), text.begin() + static_cast<ptrdiff_t>(i))) continue;
    auto& [count, latest] = result[text[i + pattern.size()]];
    ++count;
    latest = i;
  }
  return result;
}

Tokens suffix_by_scan(const Tokens& text, const SuffixOptions& options, size_t k) {
  size_t match = std::min(options.max_depth, text.size());
  const auto tail = [&](const Tokens& of, size_t n) { return Tokens(of.end() - static_cast<ptrdiff_t>(n), of.end()); };
  while (match > 0 && (match >= options.max_depth || followers(text, tail(text, match)).empty())) --match;
  const size_t limit = std::min(k, static_cast<size_t>(options.max_spec_factor * static_cast<double>(match)));
  Tokens pattern = tail(text, match), draft;
  double probability = 1;
  while (draft.size() < limit) {
    auto next = followers(text, pattern);
    while (!pattern.empty() && (pattern.size() >= options.max_depth || next.empty())) {
      pattern.erase(pattern.begin());
      next = followers(text, pattern);
    }
    if (pattern.empty()) break;
    size_t total = 0;
    auto best = next.begin();
    for (auto it = next.begin(); it != next.end(); ++it) {
      total += it->second.first;
      if (it->second > best->second) best = it;
    }
    probability *= static_cast<double>(best->second.first) / static_cast<double>(total);
    if (probability < options.min_token_prob) break;
    draft.push_back(best->first);
    pattern.push_back(best->first);
  }
  return draft;
}

void ngram_cases(std::mt19937& random) {
  for (int round = 0; round < 60; ++round) {
    const size_t min = 1 + random() % 2, max = min + random() % 4;
    NgramDrafter drafter(min, max);
    Tokens text;
    if (round % 2 == 0) drafter.reserve(100);
    for (int step = 0; step < 120; ++step) {
      text.push_back(static_cast<int64_t>(random() % 4));
      if (random() % 40 == 0) {
        text.resize(random() % text.size() + 1);
        drafter.truncate(text.size());
      }
      if (random() % 3 == 0) continue;  // tokens arrive several at a time
      const size_t k = random() % 6;
      CHECK(propose(drafter, text, k) == ngram_by_scan(text, min, max, k) || k == 0);
    }
  }
  NgramDrafter loop(2, 4);
  CHECK(propose(loop, {1, 2, 3, 1, 2, 3}, 5) == (Tokens{1, 2, 3, 1, 2}));  // a loop goes on beyond its own end
  NgramDrafter fresh(2, 4);
  CHECK(propose(fresh, {1}, 4).empty());
  CHECK(propose(fresh, {1, 2}, 4).empty());
}

void suffix_cases(std::mt19937& random) {
  for (int round = 0; round < 40; ++round) {
    const SuffixOptions options{1 + random() % 6, 0.5 + static_cast<double>(random() % 4), round % 2 == 0 ? 0.1 : 0.4};
    SuffixDrafter drafter(options);
    Tokens text;
    for (int step = 0; step < 90; ++step) {
      text.push_back(static_cast<int64_t>(random() % 3));
      if (random() % 40 == 0) {
        text.resize(random() % text.size() + 1);
        drafter.truncate(text.size());
      }
      if (random() % 3 == 0) continue;
      const size_t k = random() % 8;
      CHECK(propose(drafter, text, k) == suffix_by_scan(text, options, k));
    }
  }
}

}  // namespace

void drafters_test() {
  std::mt19937 random(1);
  ngram_cases(random);
  suffix_cases(random);
}
