// What sessions hold on a device: for each arena of the engine's one piece of the device's memory, with the same places.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/error.h"

namespace specc {

// Memory: how a device names a piece of its memory; no piece is Memory{}.
template <class Memory>
class Arenas {
 public:
  // `take()` gives the piece for the `bytes` at `host`, which nobody reads or writes. What it throws leaves all as it was.
  template <class Take>
  Memory begin(const void* host, size_t bytes, Take&& take) {
    arenas_.reserve(arenas_.size() + 1);
    arenas_.push_back({reinterpret_cast<uintptr_t>(host), bytes, take()});
    return arenas_.back().memory;
  }

  // In which piece the `bytes` at `host` lie, and how far from its beginning. Throws Error(Compute), which names `what`.
  std::pair<Memory, size_t> find(const void* host, size_t bytes, const char* what) const {
    const auto at = reinterpret_cast<uintptr_t>(host);
    for (const Arena& arena : arenas_) {
      if (at >= arena.host && at - arena.host + bytes <= arena.bytes) return {arena.memory, at - arena.host};
    }
    throw Error(Code::Compute, "a session's state lies in no arena").where(what);
  }

  // The piece that was begun at `host`, of which nothing is known from now on; none if it was not.
  Memory end(const void* host) noexcept {
    const auto found = std::find_if(arenas_.begin(), arenas_.end(), [&](const Arena& arena) {
      return arena.host == reinterpret_cast<uintptr_t>(host);
    });
    if (found == arenas_.end()) return Memory{};
    const Memory memory = found->memory;
    arenas_.erase(found);
    return memory;
  }

 private:
  struct Arena {
    uintptr_t host;
    size_t bytes;
    Memory memory;
  };
  std::vector<Arena> arenas_;
};

}  // namespace specc
