#include "state.h"

#include <new>
#include <sys/mman.h>

#include "../error.h"

namespace specc {
namespace {

constexpr size_t kAlignment = 64;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

State::State(const std::vector<StateSpec>& buffers, ModelLibrary& library) : library_(library) {
  bytes_ = kAlignment;  // never empty
  for (const auto& buffer : buffers) bytes_ += aligned(static_cast<size_t>(buffer.bytes));
  views_.reserve(buffers.size());
  // Fresh pages are zero, and cost nothing until a row is written: a long context is paid for when it is used.
  memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory_ == MAP_FAILED) {
    throw Error(Code::Memory, "no memory for a session's state").expected(std::to_string(bytes_) + " bytes");
  }
  const Turn turn(library_.turn());
  auto* at = static_cast<unsigned char*>(memory_);
  for (const auto& buffer : buffers) {
    specc_tensor* view =
        library_.api().view(at, buffer.dtype, static_cast<int32_t>(buffer.shape.size()), buffer.shape.data());
    if (view == nullptr) {
      release();
      throw std::bad_alloc();
    }
    views_.push_back(view);
    at += aligned(static_cast<size_t>(buffer.bytes));
  }
  try {
    for (size_t i = 0; i < buffers.size(); ++i) library_.place(buffers[i].name, views_[i]);
  } catch (...) {
    release();
    throw;
  }
}

State::~State() {
  const Turn turn(library_.turn());
  release();
}

void State::release() noexcept {
  for (specc_tensor* view : views_) library_.api().release(view);
  ::munmap(memory_, bytes_);
}

}  // namespace specc
