// specc.argmax and specc.accept: from logits to tokens.
#include <algorithm>
#include <cstring>

#include "builtins.h"
#include "choose.h"
#include "parallel.h"

namespace specc {
namespace {

constexpr int64_t kMostRows = 32;  // chosen at once, a bit for each in a word

}  // namespace

Status run_argmax(const Call& call) {  // logits; attrs: valid vocabulary
  if (expect("specc.argmax", call, 1, 1, 1) != kOk) return 1;
  const Tensor& logits = *call.in[0];
  if (expect_logits("specc.argmax", logits, call.attrs[0]) != kOk) return 1;
  Tensor* out = call.out[0] = new_empty(SPECC_I64, 1, &logits.sizes[0]);
  if (out == nullptr) return 1;
  for (int64_t row = 0; row < logits.sizes[0]; row++) {
    const float* from = logits.data<float>() + row * logits.strides[0];
    out->data<int64_t>()[row] = choose_greedy(from, call.attrs[0]).token;
  }
  return kOk;
}

// tokens, logits, length, temperature, seed[, best]; attrs: valid vocabulary. `best`, i64 [T], is what temperature 0
// chooses, -1 for a row with a NaN: logits are then not looked at. Where logits have more rows than there are tokens, of a
// graph that all K share, the others are padding.
Status run_accept(const Call& call) {
  const char* name = "specc.accept";
  if (expect(name, call, call.n_in == 6 ? 6 : 5, 2, 1) != kOk) return 1;
  const Tensor& logits = *call.in[1];
  if (expect_logits(name, logits, call.attrs[0]) != kOk) return 1;
  const int64_t rows = std::min(call.in[0]->numel(), logits.sizes[0]);
  if (rows < 1) return fail("%s: no rows", name);
  if (expect_tensor(name, call.in[0], SPECC_I64, rows) != kOk) return 1;
  if (expect_tensor(name, call.in[2], SPECC_I64, 1) != kOk) return 1;
  if (expect_sampling(name, call.in[3], call.in[4]) != kOk) return 1;
  const int64_t* tokens = call.in[0]->data<int64_t>();
  const int64_t length = *call.in[2]->data<int64_t>();
  const double temperature = *call.in[3]->data<double>();
  const uint64_t seed = static_cast<uint64_t>(*call.in[4]->data<int64_t>());
  if (call.n_in == 6 && expect_tensor(name, call.in[5], SPECC_I64, rows) != kOk) return 1;
  const int64_t* best = call.n_in == 6 && temperature == 0 ? call.in[5]->data<int64_t>() : nullptr;
  if (best == nullptr && fetch(call.in[1]) != kOk) return 1;

  const int64_t one = 1;
  Tensor* chosen = new_empty(SPECC_I64, 1, &rows);
  Tensor* accepted = new_empty(SPECC_I64, 1, &one);
  if (chosen == nullptr || accepted == nullptr) {
    release(chosen);
    release(accepted);
    return 1;
  }
  int64_t* y = chosen->data<int64_t>();
  const auto choose = [&](int64_t row) {
    const float* from = logits.data<float>() + row * logits.strides[0];
    if (best != nullptr) return Choice{best[row], best[row] < 0};
    return temperature == 0
               ? choose_greedy(from, call.attrs[0])
               : choose_sampled(from, call.attrs[0], temperature, seed, static_cast<uint64_t>(length + 1 + row));
  };
  // Noise keeps all threads busy with one row; greedily, each takes a row.
  const int64_t at_once = temperature == 0 && best == nullptr ? std::clamp<int64_t>(host.threads, 1, kMostRows) : 1;
  int64_t count = -1;
  for (int64_t first = 0;; first += at_once) {
    Choice choices[kMostRows];
    const int64_t width = std::min(at_once, rows - first);
    parallel(width, [&](int32_t i) { choices[i] = choose(first + i); });
    uint64_t kept = 0, nans = 0;  // a bit for each row: the draft after it is its choice, it has a NaN
    for (int64_t i = 0; i < width; i++) {
      const int64_t row = first + i;
      y[row] = choices[i].token;
      kept |= static_cast<uint64_t>(row + 1 < rows && tokens[row + 1] == y[row]) << i;
      nans |= static_cast<uint64_t>(choices[i].any_nan) << i;
    }
    const int64_t accepted_here = __builtin_ctzll(~kept);
    const int64_t deciding = std::min(accepted_here + 1, width);
    if ((nans & ((uint64_t{1} << deciding) - 1)) != 0) break;
    if (accepted_here == width) continue;
    count = first + accepted_here;
    break;
  }
  // Rows after the last that counts were chosen in vain.
  std::memset(y + count + 1, 0, (rows - count - 1) * sizeof *y);
  *accepted->data<int64_t>() = count;
  call.out[0] = chosen;
  call.out[1] = accepted;
  return kOk;
}

}  // namespace specc
