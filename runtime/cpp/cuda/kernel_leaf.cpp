#include "kernel_leaf.h"

#include <algorithm>
#include <stdexcept>

#include "recorded.h"

namespace specc {
namespace {

// What a function of the border failed with is recorded already.
void must(int32_t status) {
  if (status != kOk) throw std::runtime_error(error_text());
}

}  // namespace

LeafRun::LeafRun(const char* name, Tensor** in, int32_t n_in, Tensor** out, int32_t n_values)
    : out_(out), n_values_(n_values) {
  must(specc_cuda_enter(in, n_in));
  for (int32_t i = 0; i < n_in; i++) {
    // (What leaves give is so, and weights and state are.)
    if (!in[i]->is_contiguous()) throw std::runtime_error(std::string(name) + " was given a tensor with gaps");
  }
  for (int32_t i = 0; i < n_in; i++) {
    retain(in[i]);
    values_[i] = in[i];
  }
}

LeafRun::~LeafRun() {
  for (int32_t i = 0; i < n_values_; i++) release(values_[i]);
}

void LeafRun::make(int32_t value, int32_t dtype, Sizes sizes) {
  int64_t strides[kMaxDims];
  const int32_t ndim = static_cast<int32_t>(sizes.size());
  contiguous_strides(ndim, sizes.begin(), strides);
  must(specc_cuda_empty(ndim, sizes.begin(), strides, dtype, 1, 0, &values_[value]));
}

void LeafRun::view(int32_t value, int32_t of, Sizes sizes) {
  int64_t strides[kMaxDims];
  const int32_t ndim = static_cast<int32_t>(sizes.size());
  contiguous_strides(ndim, sizes.begin(), strides);
  const Tensor* base = values_[of];
  values_[value] = new_view(base, base->dtype, ndim, sizes.begin(), strides, base->offset);
  must(values_[value] == nullptr ? 1 : kOk);
}

void LeafRun::drop(int32_t value) {
  release(values_[value]);
  values_[value] = nullptr;
}

CUdeviceptr LeafRun::operator[](int32_t value) const {
  void* at = nullptr;
  must(specc_cuda_data(values_[value], &at));
  return reinterpret_cast<CUdeviceptr>(at);
}

void LeafRun::launch(CUfunction& kernel, const void* code, const char* name, std::initializer_list<int64_t> grid,
                     uint32_t threads, std::initializer_list<Word> words) {
  if (kernel == nullptr) must(specc_cuda_load(code, name, 0, &kernel));
  Argument arguments[kMostWords];
  if (words.size() > kMostWords) throw std::runtime_error(std::string(name) + " takes too many arguments");
  uint32_t count = 0;
  for (const Word& word : words) arguments[count++] = {&word.value, word.bytes};
  const int64_t* blocks = grid.begin();
  if (std::min({blocks[0], blocks[1], blocks[2]}) < 1) return;  // of no rows
  must(specc_cuda_launch(kernel, static_cast<uint32_t>(blocks[0]), static_cast<uint32_t>(blocks[1]),
                         static_cast<uint32_t>(blocks[2]), threads, 0, arguments, count));
}

void LeafRun::give(std::initializer_list<int32_t> values) {
  int32_t place = 0;
  for (const int32_t value : values) {
    retain(values_[value]);
    out_[place++] = values_[value];
  }
}

int32_t played(const char* name, int32_t takes, int32_t gives, int32_t n_values, Tensor** in, int32_t n_in, Tensor** out,
               int32_t n_out, void (*body)(void*, LeafRun&), void* with) {
  if (n_in != takes || n_out != gives || n_values > LeafRun::kMostValues) {
    return fail("%s: takes %d inputs and %d outputs, not %d and %d", name, takes, gives, n_in, n_out);
  }
  for (int32_t i = 0; i < n_out; i++) out[i] = nullptr;
  const Status status = recorded([&] {
    LeafRun run(name, in, n_in, out, n_values);
    body(with, run);
  });
  if (status != kOk) return 1;
  for (int32_t i = 0; i < n_in; i++) {
    release(in[i]);
    in[i] = nullptr;
  }
  return kOk;
}

}  // namespace specc
