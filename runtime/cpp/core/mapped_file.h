// A file mapped read-only, or bytes of the caller's in its place, and the few file questions the loader asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace specc {

class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::string& path);  // throws Error(Code::File)
  static MappedFile borrowed(const void* data, size_t size);  // which stay where they are
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const unsigned char* data() const { return data_; }
  size_t size() const { return size_; }

  // Starts reading the file in the background, so that the first prompt does not wait for the disk page by page.
  void will_need() const;

 private:
  const unsigned char* data_ = nullptr;
  size_t size_ = 0;
  bool borrowed_ = false;
};

std::optional<uint64_t> regular_file_size(const std::string& path);

// Whether `name`, from a manifest, stays inside the artifact: relative, no "..", no empty part, no NUL or backslash.
bool is_inner_path(std::string_view name);

}  // namespace specc
