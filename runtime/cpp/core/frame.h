// Runs plans: the slots of one session, reused by every call.
#pragma once

#include <cstdint>
#include <vector>

#include "plan.h"

namespace specc {

class Frame {
 public:
  // Everything is borrowed and outlives the frame.
  Frame(const specc_model& model, specc_tensor* const* weights, specc_tensor* const* state)
      : model_(model), weights_(weights), state_(state) {}
  ~Frame() { clear(); }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

  void reserve(const Plan& plan);

  // Runs `plan` on views of its inputs (borrowed). The results stay in the frame until clear(). The caller holds the
  // library's turn from here until after clear(). Allocates nothing if the plan was reserved. Throws Error(Compute).
  void execute(const Plan& plan, specc_tensor* const* inputs);
  specc_tensor* output(const Plan& plan, size_t index) const { return slots_[plan.output_slots[index]]; }

  // `count` int64 of an output, checked for dtype, size and layout. Throws Error(Compute).
  const int64_t* integers(const Plan& plan, size_t index, size_t count) const;
  // The same for f32 [rows, columns], whose rows may lie apart. `rows`: T, where it is that many.
  struct Matrix {
    const float* data;
    size_t stride;  // elements from one row to the next
  };
  Matrix matrix(const Plan& plan, size_t index, size_t rows = 0) const;
  // Where an output's elements are, here. Throws Error(Compute) if a device has them and does not hand them out.
  const void* data(const Plan& plan, size_t index) const;

  void clear() noexcept;

  // So far: compiled functions and kernels that were called, and times that the engine had their results.
  struct Counts {
    uint64_t launches = 0, host_syncs = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  void run(const Plan& plan, const Instruction& instruction);
  specc_tensor* fetch(const Operand& operand);
  void release(uint32_t slot) noexcept;

  const specc_model& model_;
  specc_tensor* const* weights_;
  specc_tensor* const* state_;
  std::vector<specc_tensor*> slots_, in_, out_;
  Counts counts_;
};

// Clears the frame when the reader of its results is done, or an exception passes.
class FrameGuard {
 public:
  explicit FrameGuard(Frame& frame) : frame_(frame) {}
  ~FrameGuard() { frame_.clear(); }
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;

 private:
  Frame& frame_;
};

}  // namespace specc
