#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "../../../runtime/cpp/core/drafters/continuations.h"
#include "../../../runtime/cpp/core/drafters/ngram.h"
#include "../../../runtime/cpp/core/drafters/structure.h"
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

Tokens joined_with(Tokens path, int64_t token) {
  path.push_back(token);
  return path;
}

struct Tree {
  Tokens tokens, follows;

  // Tokens on the way to draft j, its own the last.
  Tokens path(size_t j) const {
    Tokens found;
    for (int64_t node = static_cast<int64_t>(j) + 1; node > 0; node = follows[static_cast<size_t>(node - 1)]) {
      found.insert(found.begin(), tokens[static_cast<size_t>(node - 1)]);
    }
    return found;
  }
};

template <class Drafter>
Tree propose_tree(Drafter& drafter, const Tokens& text, size_t k) {
  Tree tree{Tokens(k, -1), Tokens(k, -1)};
  const size_t count = drafter.propose_tree(text.data(), text.size(), k, tree.tokens.data(), tree.follows.data());
  CHECK(count <= k);
  tree.tokens.resize(count);
  tree.follows.resize(count);
  for (size_t j = 0; j < count; ++j) CHECK(tree.follows[j] >= 0 && tree.follows[j] <= static_cast<int64_t>(j));
  std::vector<Tokens> paths;
  for (size_t j = 0; j < count; ++j) paths.push_back(tree.path(j));
  std::sort(paths.begin(), paths.end());
  CHECK(std::adjacent_find(paths.begin(), paths.end()) == paths.end());  // no node is there twice
  return tree;
}

// By scanning: how likely each token is after `path`, which goes on from the text's longest suffix that is known.
std::map<int64_t, double> shares_by_scan(const Tokens& text, const SuffixOptions& options, size_t match,
                                         const Tokens& path) {
  Tokens pattern(text.end() - static_cast<ptrdiff_t>(match), text.end());
  pattern.insert(pattern.end(), path.begin(), path.end());
  if (pattern.size() > options.max_depth) pattern.erase(pattern.begin(), pattern.end() - static_cast<ptrdiff_t>(options.max_depth));
  auto next = followers(text, pattern);
  while (!pattern.empty() && (pattern.size() >= options.max_depth || next.empty())) {
    pattern.erase(pattern.begin());
    next = followers(text, pattern);
  }
  double total = 0;
  std::map<int64_t, double> shares;
  if (pattern.empty()) return shares;
  for (const auto& [token, each] : next) total += static_cast<double>(each.first);
  for (const auto& [token, each] : next) shares[token] = static_cast<double>(each.first) / total;
  return shares;
}

// The likeliest nodes are in the tree, as likely as a scan says, the likeliest first.
void check_suffix_tree(const Tree& tree, const Tokens& text, const SuffixOptions& options, size_t k) {
  size_t match = std::min(options.max_depth, text.size());
  const auto tail = [&](size_t n) { return Tokens(text.end() - static_cast<ptrdiff_t>(n), text.end()); };
  while (match > 0 && (match >= options.max_depth || followers(text, tail(match)).empty())) --match;
  const auto longest = static_cast<size_t>(options.max_spec_factor * static_cast<double>(match));
  std::map<Tokens, double> known = {{{}, 1.0}};
  for (size_t j = 0; j < tree.tokens.size(); ++j) known[tree.path(j)] = 0;
  double best_left = 0, before = 1;
  for (auto& [path, probability] : known) {  // a path's beginning sorts before it
    if (match == 0 || path.size() >= longest) continue;
    for (const auto& [token, share] : shares_by_scan(text, options, match, path)) {
      const auto child = known.find(joined_with(path, token));
      const double likely = probability * share;
      if (child != known.end()) {
        child->second = likely;
      } else if (likely >= options.min_token_prob) {
        best_left = std::max(best_left, likely);
      }
    }
  }
  for (size_t j = 0; j < tree.tokens.size(); ++j) {
    const double likely = known[tree.path(j)];
    CHECK(likely > 0 && likely <= before + 1e-12 && likely >= options.min_token_prob - 1e-12);
    before = likely;
  }
  CHECK(tree.tokens.size() == k ? best_left <= before + 1e-12 : best_left == 0);
}

// Every path is what followed an occurrence of the last n tokens; a lone one gives its chain.
void check_ngram_tree(const Tree& tree, const Tokens& text, size_t min, size_t max, size_t k, NgramDrafter& drafter) {
  std::vector<Tokens> ways;
  for (size_t n = max; n >= min && n > 0; --n) {
    for (size_t after = n; n < text.size() && after < text.size(); ++after) {
      const auto end = text.begin() + static_cast<ptrdiff_t>(after);
      if (!std::equal(text.end() - static_cast<ptrdiff_t>(n), text.end(), end - static_cast<ptrdiff_t>(n))) continue;
      Tokens longer = text;
      for (size_t j = 0; j < k; ++j) longer.push_back(longer[after + j]);
      ways.emplace_back(longer.end() - static_cast<ptrdiff_t>(k), longer.end());
    }
  }
  CHECK((k == 0 || ways.empty()) == tree.tokens.empty());
  for (size_t j = 0; j < tree.tokens.size(); ++j) {
    const Tokens path = tree.path(j);
    CHECK(std::any_of(ways.begin(), ways.end(),
                      [&](const Tokens& way) { return std::equal(path.begin(), path.end(), way.begin()); }));
  }
  if (ways.size() == 1 && k > 0) CHECK(tree.tokens == propose(drafter, text, k) && tree.path(k - 1) == tree.tokens);
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
      if (step % 5 == 0) check_ngram_tree(propose_tree(drafter, text, k), text, min, max, k, drafter);
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
      if (step % 5 == 0) check_suffix_tree(propose_tree(drafter, text, k), text, options, k);
    }
  }
}

// Spans on the way to each node of a tree: one more wherever a node has several children.
size_t most_spans(const Tree& tree) {
  std::vector<size_t> children(tree.tokens.size() + 1, 0), spans(tree.tokens.size() + 1, 0);
  for (const int64_t parent : tree.follows) ++children[static_cast<size_t>(parent)];
  size_t most = 0;
  for (size_t j = 0; j < tree.tokens.size(); ++j) {
    const auto parent = static_cast<size_t>(tree.follows[j]);
    spans[j + 1] = spans[parent] + (parent == 0 || children[parent] > 1 ? 1 : 0);
    most = std::max(most, spans[j + 1]);
  }
  return most;
}

void span_cases(std::mt19937& random) {
  for (int round = 0; round < 50; ++round) {
    Continuations ways;
    ways.reserve(12, 10);
    std::map<Tokens, double> heavy;  // by path: what the ways through it weigh
    for (int way = 0; way < 12; ++way) {
      Tokens tokens, path;
      for (int i = 0; i < 10; ++i) tokens.push_back(static_cast<int64_t>(random() % 2));
      const double weight = static_cast<double>(random() % 100 + 1);
      ways.add(tokens.data(), tokens.size(), weight);
      double left = weight;
      for (const int64_t token : tokens) heavy[path = joined_with(path, token)] += left *= 0.75;
    }
    for (const size_t spans : {1u, 2u, 5u, 100u}) {
      const size_t k = 1 + random() % 60;
      Tree tree{Tokens(k), Tokens(k)};
      const size_t count = ways.heaviest(k, spans, tree.tokens.data(), tree.follows.data());
      tree.tokens.resize(count);
      tree.follows.resize(count);
      CHECK(most_spans(tree) <= spans);
      double before = 1e9;
      for (size_t j = 0; j < count; ++j) {
        const double weight = heavy.at(tree.path(j));
        CHECK(weight <= before * (1 + 1e-12));
        before = weight;
      }
      if (spans < 100) continue;
      std::vector<double> all;
      for (const auto& [path, weight] : heavy) all.push_back(weight);
      std::sort(all.rbegin(), all.rend());
      CHECK(count == std::min(k, all.size()) && std::fabs(all[count - 1] - before) < 1e-9);
    }
  }
}

// By scanning: places with the last token, by cosine of the rows before, the later of equals first.
std::vector<size_t> places_by_scan(const Tokens& text, const std::vector<float>& rows, size_t width,
                                   const StructureOptions& options) {
  const size_t last = text.size() - 1, columns = structure_columns(text.size(), width);
  std::vector<std::pair<double, size_t>> found;
  for (size_t place = 1; place < last; ++place) {
    if (text[place] != text[last] || place + options.max_window < last) continue;
    double product = 0, a = 0, b = 0;
    for (size_t i = 0; i < columns; ++i) {
      const double x = rows[(place - 1) * width + i], y = rows[(last - 1) * width + i];
      product += x * y;
      a += x * x;
      b += y * y;
    }
    const double cosine = product / std::sqrt(b * a);
    if (cosine >= options.min_similarity) found.push_back({-cosine, last - place});
  }
  std::sort(found.begin(), found.end());
  if (found.size() > options.max_matches) found.resize(options.max_matches);
  std::vector<size_t> places;
  for (const auto& each : found) places.push_back(last - each.second);
  return places;
}

void structure_cases(std::mt19937& random) {
  CHECK(structure_columns(256, 300) == 32 && structure_columns(257, 300) == 128);
  CHECK(structure_columns(1024, 300) == 128 && structure_columns(1025, 300) == 256 && structure_columns(1025, 40) == 40);
  for (int round = 0; round < 60; ++round) {
    const size_t width = 40;
    const StructureOptions options{1 + random() % 6, round % 3 == 0 ? size_t{20} : size_t{4096}, round % 2 == 0 ? 0.0 : -1.0};
    StructureDrafter drafter(options);
    Tokens text;
    std::vector<float> rows, kinds;
    for (size_t i = 0; i < 3 * width; ++i) kinds.push_back(static_cast<float>(random() % 200) / 100 - 1);
    for (int step = 0; step < 70; ++step) {
      text.push_back(static_cast<int64_t>(random() % 3));
      const auto kind = static_cast<ptrdiff_t>((random() % 3) * width);  // of few kinds, so that there are ties
      rows.insert(rows.end(), kinds.begin() + kind, kinds.begin() + kind + static_cast<ptrdiff_t>(width));
      const std::vector<float> shown(rows.begin(), rows.end() - static_cast<ptrdiff_t>(width));  // not the root's
      const auto places = text.size() < 3 ? std::vector<size_t>() : places_by_scan(text, shown, width, options);
      const size_t k = 1 + random() % 9;
      const auto way = [&](size_t place) {
        Tokens longer = text;
        for (size_t j = 0; j < k; ++j) longer.push_back(longer[place + 1 + j]);
        return Tokens(longer.end() - static_cast<ptrdiff_t>(k), longer.end());
      };
      drafter.see(shown.data(), width);
      CHECK(propose(drafter, text, k) == (places.empty() ? Tokens() : way(places.front())));
      drafter.see(shown.data(), width);
      const Tree tree = propose_tree(drafter, text, k);
      CHECK(tree.tokens.empty() == places.empty() && most_spans(tree) <= 5);
      for (size_t j = 0; j < tree.tokens.size(); ++j) {
        const Tokens path = tree.path(j);
        CHECK(std::any_of(places.begin(), places.end(), [&](size_t place) {
          const Tokens one = way(place);
          return std::equal(path.begin(), path.end(), one.begin());
        }));
      }
      CHECK(propose_tree(drafter, text, k).tokens.empty());  // it was shown nothing
    }
  }
}

}  // namespace

void drafters_test() {
  std::mt19937 random(1);
  ngram_cases(random);
  suffix_cases(random);
  span_cases(random);
  structure_cases(random);
}
