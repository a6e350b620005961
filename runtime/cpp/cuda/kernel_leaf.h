// What a leaf that backends/tvm/gpu wrote is compiled against: launches over numbered values, inputs first.
#pragma once
#include <initializer_list>

#include "border.h"

namespace specc {

// One argument of a kernel: an address of the GPU's, or a number.
struct Word {
  uint64_t value;
  uint32_t bytes;
  Word(CUdeviceptr address) : value(address), bytes(8) {}
  Word(int64_t number) : value(static_cast<uint64_t>(number)), bytes(8) {}
  Word(int32_t number) : value(static_cast<uint32_t>(number)), bytes(4) {}
};

// The values of one run. Its own references are dropped with it. What fails is an exception, whose text is recorded.
class LeafRun {
 public:
  static constexpr int32_t kMostValues = 512, kMostWords = 32;

  LeafRun(const char* name, Tensor** in, int32_t n_in, Tensor** out, int32_t n_values);
  ~LeafRun();
  LeafRun(const LeafRun&) = delete;
  LeafRun& operator=(const LeafRun&) = delete;

  using Sizes = std::initializer_list<int64_t>;
  void make(int32_t value, int32_t dtype, Sizes sizes);
  void view(int32_t value, int32_t of, Sizes sizes);  // the same elements in another shape
  void drop(int32_t value);
  CUdeviceptr operator[](int32_t value) const;  // where its first element is
  // `kernel` is looked up in `code` when it is null.
  void launch(CUfunction& kernel, const void* code, const char* name, std::initializer_list<int64_t> grid, uint32_t threads,
              std::initializer_list<Word> words);
  void give(std::initializer_list<int32_t> values);

 private:
  Tensor** const out_;
  const int32_t n_values_;
  Tensor* values_[kMostValues] = {};
};

// Runs a leaf that takes and gives so many values; inputs are released on success, as compiled leaves do.
int32_t played(const char* name, int32_t takes, int32_t gives, int32_t n_values, Tensor** in, int32_t n_in, Tensor** out,
               int32_t n_out, void (*body)(void*, LeafRun&), void* with);

template <class Body>
int32_t played(const char* name, int32_t takes, int32_t gives, int32_t n_values, Tensor** in, int32_t n_in, Tensor** out,
               int32_t n_out, const Body& body) {
  const auto call = [](void* with, LeafRun& run) { (*static_cast<const Body*>(with))(run); };
  return played(name, takes, gives, n_values, in, n_in, out, n_out, call, const_cast<Body*>(&body));
}

}  // namespace specc
