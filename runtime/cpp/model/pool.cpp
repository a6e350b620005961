#include "pool.h"

#include <atomic>
#include <bit>
#include <cstdlib>

namespace specc {
namespace {

// Four size classes to a doubling keep the waste under a quarter: 2^k * {4, 5, 6, 7} / 4. From 256 bytes on all of
// them are multiples of 64, as aligned_alloc wants, and a block's size names its class.
constexpr size_t kSmallest = 256;
constexpr int kClasses = 4 * 40;

int class_of(size_t bytes) {
  if (bytes <= kSmallest) return 0;
  const int doubling = std::bit_width(bytes - 1) - 1;  // 2^doubling < bytes <= 2^(doubling+1)
  const size_t quarter = size_t{1} << (doubling - 2);
  const size_t steps = (bytes - (size_t{1} << doubling) + quarter - 1) / quarter;  // 1..4
  return 4 * (doubling - 8) + static_cast<int>(steps);
}

size_t size_of(int size_class) { return (size_t{4} + size_class % 4) << (size_class / 4 + 6); }

// Free blocks are chained through their own first bytes: the free lists need no memory either.
struct FreeBlock {
  FreeBlock* next;
};

class Pool {
 public:
  ~Pool() {
    for (FreeBlock* head : heads_) {
      while (head != nullptr) {
        FreeBlock* next = head->next;
        std::free(head);
        head = next;
      }
    }
  }

  void* take(int size_class) {
    lock();
    FreeBlock* block = heads_[size_class];
    if (block != nullptr) heads_[size_class] = block->next;
    unlock();
    return block;
  }

  void give(int size_class, void* memory) {
    FreeBlock* block = static_cast<FreeBlock*>(memory);
    lock();
    block->next = heads_[size_class];
    heads_[size_class] = block;
    unlock();
  }

 private:
  // Held for a handful of instructions, and nearly always free: the engine runs one call at a time.
  void lock() {
    while (busy_.test_and_set(std::memory_order_acquire)) {
    }
  }
  void unlock() { busy_.clear(std::memory_order_release); }

  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
  FreeBlock* heads_[kClasses] = {};
};

Pool pool;
std::atomic<size_t> system_allocations{0};

}  // namespace

void* pool_alloc(size_t bytes, size_t* granted) {
  if (bytes > (size_t{1} << 46)) return nullptr;
  const int size_class = class_of(bytes);
  *granted = size_of(size_class);
  if (void* block = pool.take(size_class)) return block;
  system_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::aligned_alloc(64, *granted);
}

void pool_free(void* block, size_t granted) { pool.give(class_of(granted), block); }

size_t pool_system_allocations() { return system_allocations.load(std::memory_order_relaxed); }

}  // namespace specc
