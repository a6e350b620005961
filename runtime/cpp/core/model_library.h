// An artifact's model.so, opened, checked and attached to a thread pool.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "pool.h"
#include "shared_object.h"
#include "source.h"
#include "specc_model.h"
#include "turn.h"

namespace specc {

class ModelLibrary {
 public:
  // Loading the same unchanged file twice gives the same object: the dynamic linker would hand out one library anyway,
  // and that can be attached to one pool only. `threads` counts for the first. A file that has taken the place of
  // another is a library of its own. Throws Error(ModelRefused).
  static std::shared_ptr<ModelLibrary> open(const Source& source, const std::string& isa, int32_t threads);
  ~ModelLibrary();
  ModelLibrary(const ModelLibrary&) = delete;
  ModelLibrary& operator=(const ModelLibrary&) = delete;

  const specc_model& api() const { return *api_; }
  // Says that `state`, a view of the buffer `name`, is a session's. Throws Error(Memory). The caller holds the turn.
  void place(const std::string& name, specc_tensor* state) const;
  // Says that states which are placed next lie in `memory`, and that none is left there. Throws Error(Memory) at its
  // beginning. The caller holds the turn.
  void begin_arena(const void* memory, int64_t bytes) const;
  void end_arena(const void* memory) const noexcept {
    if (arena_end_ != nullptr) arena_end_(memory);
  }
  // Says that `view` is one of a weight. The caller holds the turn.
  void keep(specc_tensor* view) const {
    if (weight_ != nullptr) weight_(view);
  }
  std::optional<int32_t> entry(const std::string& name) const;
  int32_t threads() const { return pool_.threads(); }
  void use_threads(int32_t threads) { pool_.use(threads); }
  // Work of the engine's own on the threads of kernels. The caller holds the turn.
  void parallel(int32_t parts, Pool::Body body, void* arg) { pool_.parallel(parts, body, arg); }
  uint32_t thread_syncs() const { return pool_.jobs(); }  // so far; wraps around

  // Held by whoever calls into the model. Every call goes under it: tensors are counted without atomics on the other
  // side of the border, and kernels share the pool.
  TurnMutex& turn() { return turn_; }

 private:
  ModelLibrary(SharedObject object, const Source& source, const std::string& isa, int32_t threads);

  SharedObject object_;  // first, so that the threads have ended when the library is closed
  const specc_model* api_ = nullptr;
  const specc_device* device_ = nullptr;
  void (*weight_)(specc_tensor*) = nullptr;
  int32_t (*arena_)(const void*, int64_t) = nullptr;
  void (*arena_end_)(const void*) = nullptr;
  std::unordered_map<std::string, int32_t> entries_;
  Pool pool_;
  specc_host host_{};
  TurnMutex turn_;
};

}  // namespace specc
