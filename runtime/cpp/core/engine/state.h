// The state buffers of one session: zero-filled, 64-byte aligned, in one mapping.
#pragma once

#include <cstddef>
#include <vector>

#include "../manifest.h"
#include "../model_library.h"

namespace specc {

class State {
 public:
  State(const std::vector<StateSpec>& buffers, ModelLibrary& library);  // throws Error(Memory)
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  specc_tensor* const* views() const { return views_.data(); }

 private:
  void release() noexcept;

  ModelLibrary& library_;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  std::vector<specc_tensor*> views_;
};

}  // namespace specc
