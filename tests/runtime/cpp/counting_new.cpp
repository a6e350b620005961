// Counts allocations. In a file of its own, since a compiler that sees both the counter and its callers warns of
// mismatches.

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests.h"

namespace {
std::atomic<long> allocations{0};
}

long allocations_so_far() { return allocations.load(); }

void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size > 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
