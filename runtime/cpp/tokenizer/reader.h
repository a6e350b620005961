// Bounds-checked reading of `tokenizer.bin`. Every method throws std::runtime_error instead of reading outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace specc::tok {

constexpr uint32_t kNone = 0xFFFFFFFFu;

[[noreturn]] void damaged(const char* what);

// Elements that live in the file's buffer.
template <typename T>
struct Array {
  const T* data = nullptr;
  size_t size = 0;
  const T& operator[](size_t i) const { return data[i]; }
  const T* begin() const { return data; }
  const T* end() const { return data + size; }
};

// Reads one section in order.
class Reader {
 public:
  Reader(const uint8_t* begin, size_t size) : begin_(begin), size_(size) {}
  uint32_t u32();
  double f64();
  std::string text();  // valid UTF-8
  uint32_t below(uint32_t limit, const char* what);
  uint32_t below_or_none(uint32_t limit, const char* what);
  bool flag() { return below(2, "flag") == 1; }
  template <typename T>
  Array<T> array();
  void finish() const;

 private:
  void align(size_t to);
  const uint8_t* take(size_t bytes);
  const uint8_t* begin_;
  size_t size_;
  size_t at_ = 0;
};

// The whole file, copied to where its elements are aligned, its header checked.
class File {
 public:
  explicit File(std::string_view content);
  Reader section(const char* name) const;

 private:
  std::vector<uint64_t> words_;
  size_t size_ = 0;
};

}  // namespace specc::tok
