// The state buffers of one session: zero-filled, 64-byte aligned, in one mapping with guards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../arena.h"
#include "../model_library.h"

namespace specc {

class State {
 public:
  // In the plan for the shortest texts. Throws Error(Memory).
  State(const std::vector<StateSpec>& buffers, const ArenaSpec& arena, ModelLibrary& library);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Of each buffer, at one address for good; the views in it change with the plan.
  specc_tensor* const* views() const { return views_.data(); }

  // Where buffer `index` begins, as long as the plan is this one.
  const void* data(size_t index) const;

  // Moves to the shortest plan that holds texts of `rows` positions, if this one does not, and takes along the first
  // `kept` rows. Throws Error(Memory) and leaves everything as it is.
  void make_room(size_t rows, size_t kept);
  const ArenaPlan& plan() const { return *plan_; }

  // False where a device holds all buffers: nothing writes here, so there is nothing to look at.
  bool guarded() const { return guarded_; }
  // Throws Error(Guard) if anything was written between two buffers.
  void check_guards() const;

 private:
  struct Mapping {
    unsigned char* memory = nullptr;
    std::vector<specc_tensor*> views;
  };
  Mapping map(const ArenaPlan& plan) const;
  // The caller holds the library's turn in these two.
  void view(Mapping& mapping, const ArenaPlan& plan, const Placed& placed) const;
  void drop(Mapping& mapping, const ArenaPlan& plan) const noexcept;
  void release(Mapping& mapping, const ArenaPlan& plan) const noexcept;
  void copy(const Mapping& to, const ArenaPlan& plan, size_t kept) const;

  const std::vector<StateSpec>& buffers_;
  const ArenaSpec& arena_;
  ModelLibrary& library_;
  const ArenaPlan* plan_;
  unsigned char* memory_ = nullptr;
  std::vector<specc_tensor*> views_;
  bool guarded_ = false;
};

}  // namespace specc
