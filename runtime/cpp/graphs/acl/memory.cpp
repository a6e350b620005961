#include "acl/memory.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace specc {
namespace {

constexpr size_t kBlock = size_t{2} << 20;

size_t blocks_of(size_t bytes) { return std::max<size_t>(1, (bytes + kBlock - 1) / kBlock); }

}  // namespace

DeviceMemory::DeviceMemory(const Acl& acl, size_t pool_bytes) : acl_(acl) {
  if (pool_bytes == 0) return;
  const size_t count = blocks_of(pool_bytes);
  runs_.resize(count, 0);
  used_.resize(count, false);
  void* pool = nullptr;
  acl_check(acl_, acl_.aclrtMalloc(&pool, count * kBlock, ACL_MEM_MALLOC_HUGE_ONLY), "aclrtMalloc", "SPECC_NPU_POOL");
  pool_ = static_cast<char*>(pool);
}

DeviceMemory::~DeviceMemory() {
  if (pool_ != nullptr) acl_.aclrtFree(pool_);
}

void* DeviceMemory::take(size_t bytes, const char* what) {
  void* piece = nullptr;
  if (pool_ == nullptr) {
    acl_check(acl_, acl_.aclrtMalloc(&piece, std::max<size_t>(bytes, 32), ACL_MEM_MALLOC_HUGE_FIRST), "aclrtMalloc",
              what);
    return piece;
  }
  const size_t wanted = blocks_of(bytes);
  size_t free = 0;  // blocks before `at` in a row
  for (size_t at = 0; at < used_.size(); ++at) {
    free = used_[at] ? 0 : free + 1;
    if (free < wanted) continue;
    const size_t first = at + 1 - wanted;
    std::fill_n(used_.begin() + static_cast<std::ptrdiff_t>(first), wanted, true);
    runs_[first] = wanted;
    return pool_ + first * kBlock;
  }
  throw Error(Code::Memory, "the pool of the NPU's memory is full")
      .where(what)
      .expected(std::to_string(wanted) + " blocks of 2 MB in a row")
      .found(std::to_string(std::count(used_.begin(), used_.end(), false)) + " of " + std::to_string(used_.size()) +
             " are free")
      .cure("set SPECC_NPU_POOL to more MiB, or unset it");
}

void DeviceMemory::give(void* piece) noexcept {
  if (pool_ == nullptr) {
    acl_.aclrtFree(piece);
    return;
  }
  const auto first = static_cast<size_t>(static_cast<char*>(piece) - pool_) / kBlock;
  std::fill_n(used_.begin() + static_cast<std::ptrdiff_t>(first), runs_[first], false);
  runs_[first] = 0;
}

}  // namespace specc
