// Splitting work over the engine's threads. A part must not change what a result is, only who computes it.
#pragma once
#include <cstdint>

#include "specc_model.h"

namespace specc {

extern specc_host host;  // filled by attach; one thread until then

// Calls body(part) for part in [0, parts); parts beyond 1 may run on other threads.
template <class Body>
void parallel(int64_t parts, const Body& body) {
  if (parts <= 0) return;
  if (parts == 1 || host.parallel == nullptr) {
    for (int64_t part = 0; part < parts; part++) body(static_cast<int32_t>(part));
    return;
  }
  host.parallel(
      host.pool, static_cast<int32_t>(parts),
      [](void* arg, int32_t part) { (*static_cast<const Body*>(arg))(part); }, const_cast<Body*>(&body));
}

// How many parts suit `work` units when one part should have at least `least` of them.
inline int64_t parts_for(int64_t work, int64_t least) {
  const int64_t useful = work / least;
  const int64_t threads = host.threads > 1 ? host.threads : 1;
  return useful < 1 ? 1 : useful < threads ? useful : threads;
}

// The same for work that is cut anywhere: up to kSlices parts a thread. Only a part that was begun must be waited for, so
// where a neighbour takes a core from one thread, the others do most of its work.
constexpr int64_t kSlices = 4;
inline int64_t slices_for(int64_t work, int64_t least) {
  const int64_t useful = work / least;
  const int64_t most = host.threads > 1 ? host.threads * kSlices : 1;
  return useful < 1 ? 1 : useful < most ? useful : most;
}

// The part's share of [0, count): as even as whole units allow.
struct Share {
  int64_t begin;
  int64_t end;
};
inline Share share(int64_t count, int64_t part, int64_t parts) {
  return {count * part / parts, count * (part + 1) / parts};
}

}  // namespace specc
