// specc.roots, specc.take, specc.candidates, specc.cross, specc.best, specc.prune_tree, specc.accept_tree: token trees
// between compiled leaves. ir/tree_operations.py defines them.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "builtins.h"
#include "candidates.h"
#include "choose.h"
#include "parallel.h"

namespace specc {
namespace {

constexpr int64_t kLeastRows = 16384;  // logits worth another thread
constexpr int64_t kMostCandidates = 256;

// Allocates the call's outputs; whoever called releases them if it fails.
Status make(const Call& call, std::initializer_list<std::pair<int32_t, int64_t>> wanted) {
  Tensor** out = call.out;
  for (const auto& [dtype, size] : wanted) {
    if ((*out++ = new_empty(dtype, 1, &size)) == nullptr) return 1;
  }
  return kOk;
}

// Parents come before their children; the first node is the root.
Status check_parents(const char* name, const Tensor& parents, int64_t count) {
  if (expect_tensor(name, &parents, SPECC_I64, count) != kOk) return 1;
  for (int64_t i = 0; i < count; i++) {
    const int64_t parent = parents.data<int64_t>()[i];
    if (parent >= (i == 0 ? -1 : 0) && parent < i) continue;
    return fail("%s: node %ld has parent %ld", name, (long)i, (long)parent);
  }
  return kOk;
}

// Whether score a of node i comes before score b of node j: the higher first, of equals the earlier.
struct Better {
  const double* scores;
  bool operator()(int64_t i, int64_t j) const {
    return scores[i] > scores[j] || (scores[i] == scores[j] && i < j);
  }
};

// The `count` best of `size` scores into places[0, count), best first; `places` holds `size`.
Status rank(const char* name, const Tensor& scores, int64_t count, int64_t* places) {
  const int64_t size = scores.numel();
  const double* values = scores.data<double>();
  if (std::any_of(values, values + size, [](double x) { return std::isnan(x); })) return fail("%s: a NaN", name);
  std::iota(places, places + size, 0);
  std::partial_sort(places, places + count, places + size, Better{values});
  return kOk;
}

}  // namespace

Status run_roots(const Call& call) {  // rows
  if (expect("specc.roots", call, 1, 1, 0) != kOk) return 1;
  if (expect_tensor("specc.roots", call.in[0], SPECC_I64, 0) != kOk) return 1;
  const int64_t size = call.in[0]->numel();
  if (make(call, {{SPECC_I64, size}}) != kOk) return 1;
  std::fill_n(call.out[0]->data<int64_t>(), size, -1);
  return kOk;
}

Status run_take(const Call& call) {  // x, index
  const char* name = "specc.take";
  if (expect(name, call, 2, 1, 0) != kOk) return 1;
  const Tensor& x = *call.in[0];
  if (expect_tensor(name, call.in[1], SPECC_I64, 1) != kOk) return 1;
  if (x.ndim < 1 || !x.is_contiguous()) return fail("%s: x must be contiguous and have rows", name);
  const int64_t count = call.in[1]->numel();
  int64_t sizes[kMaxDims];
  std::copy_n(x.sizes, x.ndim, sizes);
  sizes[0] = count;
  const int64_t* index = call.in[1]->data<int64_t>();
  for (int64_t i = 0; i < count; i++) {
    if (index[i] < 0 || index[i] >= x.sizes[0]) return fail("%s: row %ld of %ld", name, (long)index[i], (long)x.sizes[0]);
  }
  Tensor* out = call.out[0] = new_empty(x.dtype, x.ndim, sizes);
  if (out == nullptr) return 1;
  const int64_t bytes = x.numel() / x.sizes[0] * static_cast<int64_t>(dtype_size(x.dtype));
  const char* from = x.begin();
  for (int64_t i = 0; i < count; i++) std::copy_n(from + index[i] * bytes, bytes, out->storage->data + i * bytes);
  return kOk;
}

// logits, nodes, scores, positions, temperature, seed; attrs: count, valid vocabulary
Status run_candidates(const Call& call) {
  const char* name = "specc.candidates";
  if (expect(name, call, 6, 3, 2) != kOk) return 1;
  const Tensor& logits = *call.in[0];
  const int64_t count = call.attrs[0], valid = call.attrs[1];
  if (expect_logits(name, logits, valid) != kOk) return 1;
  const int64_t rows = logits.sizes[0];
  if (count < 1 || count > std::min(valid, kMostCandidates)) return fail("%s: %ld of %ld", name, (long)count, (long)valid);
  if (expect_tensor(name, call.in[1], SPECC_I64, rows) != kOk) return 1;
  if (expect_tensor(name, call.in[2], SPECC_F64, rows) != kOk) return 1;
  if (expect_tensor(name, call.in[3], SPECC_I64, rows) != kOk) return 1;
  if (expect_sampling(name, call.in[4], call.in[5]) != kOk) return 1;
  const double temperature = *call.in[4]->data<double>();
  const uint64_t seed = static_cast<uint64_t>(*call.in[5]->data<int64_t>());
  const int64_t size = rows * count;
  if (make(call, {{SPECC_I64, size}, {SPECC_I64, size}, {SPECC_F64, size}}) != kOk) return 1;
  int64_t *tokens = call.out[0]->data<int64_t>(), *parents = call.out[1]->data<int64_t>();
  double* scores = call.out[2]->data<double>();
  const int64_t parts = std::min(rows, parts_for(rows * valid, kLeastRows));
  parallel(parts, [&](int32_t part) {
    const Share mine = share(rows, part, parts);
    Candidate best[kMostCandidates];
    for (int64_t row = mine.begin; row < mine.end; row++) {
      const float* from = logits.data<float>() + row * logits.strides[0];
      if (temperature == 0) {
        best_tokens(from, valid, count, best);
      } else {
        const uint64_t position = static_cast<uint64_t>(call.in[3]->data<int64_t>()[row] + 1);
        best_sampled(from, valid, count, temperature, seed, position, best);
      }
      for (int64_t i = 0; i < count; i++) {
        tokens[row * count + i] = best[i].token;
        parents[row * count + i] = call.in[1]->data<int64_t>()[row];
        scores[row * count + i] = call.in[2]->data<double>()[row] + best[i].value;
      }
    }
  });
  return kOk;
}

Status run_cross(const Call& call) {  // tokens, shares, nodes, scores
  const char* name = "specc.cross";
  if (expect(name, call, 4, 3, 0) != kOk) return 1;
  const int64_t count = call.in[0]->numel(), rows = call.in[2]->numel(), size = count * rows;
  if (expect_tensor(name, call.in[0], SPECC_I64, 1) != kOk) return 1;
  if (expect_tensor(name, call.in[1], SPECC_F64, count) != kOk) return 1;
  if (expect_tensor(name, call.in[2], SPECC_I64, 1) != kOk) return 1;
  if (expect_tensor(name, call.in[3], SPECC_F64, rows) != kOk) return 1;
  if (make(call, {{SPECC_I64, size}, {SPECC_I64, size}, {SPECC_F64, size}}) != kOk) return 1;
  for (int64_t i = 0; i < size; i++) {
    call.out[0]->data<int64_t>()[i] = call.in[0]->data<int64_t>()[i % count];
    call.out[1]->data<int64_t>()[i] = call.in[2]->data<int64_t>()[i / count];
    call.out[2]->data<double>()[i] = call.in[3]->data<double>()[i / count] + call.in[1]->data<double>()[i % count];
  }
  return kOk;
}

Status run_best(const Call& call) {  // scores; attrs: count, each
  const char* name = "specc.best";
  if (expect(name, call, 1, 2, 2) != kOk) return 1;
  const int64_t count = call.attrs[0], each = call.attrs[1];
  if (count < 1 || each < 1) return fail("%s: %ld of groups of %ld", name, (long)count, (long)each);
  if (expect_tensor(name, call.in[0], SPECC_F64, count) != kOk) return 1;
  const int64_t size = call.in[0]->numel();
  Tensor* places = new_empty(SPECC_I64, 1, &size);
  if (places == nullptr) return 1;
  int64_t* order = places->data<int64_t>();
  const bool ranked = rank(name, *call.in[0], count, order) == kOk &&
                      make(call, {{SPECC_I64, count}, {SPECC_I64, count}}) == kOk;
  for (int64_t i = 0; ranked && i < count; i++) {
    call.out[0]->data<int64_t>()[i] = order[i];
    call.out[1]->data<int64_t>()[i] = order[i] / each;
  }
  release(places);
  return ranked ? kOk : 1;
}

Status run_prune_tree(const Call& call) {  // tokens, parents, scores; attrs: count
  const char* name = "specc.prune_tree";
  if (expect(name, call, 3, 3, 1) != kOk) return 1;
  const int64_t kept = call.attrs[0] + 1, size = call.in[2]->numel();
  if (kept < 1) return fail("%s: a count of %ld", name, (long)call.attrs[0]);
  if (expect_tensor(name, call.in[2], SPECC_F64, kept) != kOk) return 1;
  if (expect_tensor(name, call.in[0], SPECC_I64, size) != kOk) return 1;
  if (check_parents(name, *call.in[1], size) != kOk) return 1;
  const int64_t both = 2 * size;
  Tensor* memory = new_empty(SPECC_I64, 1, &both);
  if (memory == nullptr) return 1;
  int64_t *order = memory->data<int64_t>(), *place = order + size;
  Status status = rank(name, *call.in[2], kept, order);
  if (status == kOk) status = make(call, {{SPECC_I64, kept}, {SPECC_I64, kept}, {SPECC_I64, kept}});
  if (status == kOk) {
    std::sort(order, order + kept);
    std::fill_n(place, size, -1);
    for (int64_t i = 0; i < kept; i++) place[order[i]] = i;
    int64_t* depths = call.out[2]->data<int64_t>();
    for (int64_t i = 0; i < kept; i++) {
      const int64_t parent = i == 0 ? -1 : place[call.in[1]->data<int64_t>()[order[i]]];
      call.out[0]->data<int64_t>()[i] = call.in[0]->data<int64_t>()[order[i]];
      call.out[1]->data<int64_t>()[i] = parent;
      depths[i] = parent < 0 ? 0 : depths[parent] + 1;
      if (order[0] != 0 || (i > 0 && parent < 0)) {
        status = fail("%s: a node has a better score than its parent", name);
        break;
      }
    }
  }
  release(memory);
  return status;
}

// tokens, parents, logits, length, temperature, seed; attrs: depth, valid vocabulary
Status run_accept_tree(const Call& call) {
  const char* name = "specc.accept_tree";
  if (expect(name, call, 6, 3, 2) != kOk) return 1;
  const Tensor& logits = *call.in[2];
  const int64_t depth = call.attrs[0], valid = call.attrs[1];
  if (expect_logits(name, logits, valid) != kOk) return 1;
  const int64_t rows = logits.sizes[0], places = depth + 1;
  if (depth < 0 || places > rows) return fail("%s: a depth of %ld in %ld rows", name, (long)depth, (long)rows);
  if (expect_tensor(name, call.in[0], SPECC_I64, rows) != kOk) return 1;
  if (check_parents(name, *call.in[1], rows) != kOk) return 1;
  if (expect_tensor(name, call.in[3], SPECC_I64, 1) != kOk) return 1;
  if (expect_sampling(name, call.in[4], call.in[5]) != kOk) return 1;
  const int64_t *tokens = call.in[0]->data<int64_t>(), *parents = call.in[1]->data<int64_t>();
  const int64_t length = *call.in[3]->data<int64_t>();
  const double temperature = *call.in[4]->data<double>();
  const uint64_t seed = static_cast<uint64_t>(*call.in[5]->data<int64_t>());
  if (make(call, {{SPECC_I64, places}, {SPECC_I64, 1}, {SPECC_I64, places}}) != kOk) return 1;
  int64_t *chosen = call.out[0]->data<int64_t>(), *nodes = call.out[2]->data<int64_t>();
  int64_t& accepted = *call.out[1]->data<int64_t>();
  std::fill_n(chosen, places, 0);
  std::iota(nodes, nodes + places, 0);
  for (int64_t step = 0, node = 0; node < rows; step++) {
    const float* from = logits.data<float>() + node * logits.strides[0];
    const uint64_t position = static_cast<uint64_t>(length + 1 + step);
    const Choice choice =
        temperature == 0 ? choose_greedy(from, valid) : choose_sampled(from, valid, temperature, seed, position);
    if (choice.any_nan) {
      std::fill_n(chosen, places, 0);
      std::iota(nodes, nodes + places, 0);
      accepted = -1;
      break;
    }
    chosen[step] = choice.token;
    nodes[step] = node;
    accepted = step;
    if (step == depth) break;
    const int64_t parent = node++;  // children stand behind
    while (node < rows && !(parents[node] == parent && tokens[node] == choice.token)) node++;
  }
  return kOk;
}

}  // namespace specc
