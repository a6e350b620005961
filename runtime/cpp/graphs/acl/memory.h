// Memory of the NPU, allocated when an artifact or a session is opened and at no other time.
#pragma once
#include <cstddef>
#include <utility>
#include <vector>

#include "acl/calls.h"

namespace specc {

class DeviceMemory {
 public:
  // pool_bytes: 0 asks ACL for each piece. Else so much is taken at once, in huge pages of 2 MB, and pieces are runs of
  // such blocks of it: whoever shares the NPU sees one size, and nothing fragments. Throws Error(Memory).
  DeviceMemory(const Acl& acl, size_t pool_bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // `what` it is for is said in the error. Throws Error(Memory).
  void* take(size_t bytes, const char* what);
  void give(void* piece) noexcept;

 private:
  const Acl& acl_;
  char* pool_ = nullptr;
  std::vector<size_t> runs_;  // of the pool's blocks: at the first of a piece, how many it has; 0 elsewhere
  std::vector<bool> used_;
};

// A piece, or no piece, that is given back.
class DevicePiece {
 public:
  DevicePiece() = default;
  DevicePiece(DeviceMemory& memory, size_t bytes, const char* what)
      : memory_(&memory), data_(memory.take(bytes, what)), bytes_(bytes) {}
  DevicePiece(DevicePiece&& other) noexcept { *this = std::move(other); }
  DevicePiece& operator=(DevicePiece&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DevicePiece() {
    if (data_ != nullptr) memory_->give(data_);
  }

  char* data() const { return static_cast<char*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  DeviceMemory* memory_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace specc
