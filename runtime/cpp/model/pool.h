// Memory blocks that are kept when freed, so that after the first rounds a run never reaches malloc.
#pragma once
#include <cstddef>

namespace specc {

// 64-byte aligned; nullptr when the system has no more. `granted` is the block's true size: hand it to pool_free.
void* pool_alloc(size_t bytes, size_t* granted);
void pool_free(void* block, size_t granted);

// How often the pool had to ask the system; a steady state adds none. For tests.
size_t pool_system_allocations();

}  // namespace specc
