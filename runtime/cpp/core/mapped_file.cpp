#include "mapped_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "error.h"

namespace specc {
namespace {

class Descriptor {
 public:
  explicit Descriptor(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw Error(Code::File, "a file cannot be opened").where(path).found(std::strerror(errno));
  }
  ~Descriptor() { ::close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const Descriptor file(path);
  struct stat info{};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    throw Error(Code::File, "not a regular file").where(path);
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;  // mmap refuses length 0
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) {
    throw Error(errno == ENOMEM ? Code::Memory : Code::File, "a file cannot be mapped")
        .where(path)
        .found(std::strerror(errno));
  }
  data_ = static_cast<const unsigned char*>(address);
}

MappedFile MappedFile::borrowed(const void* data, size_t size) {
  MappedFile file;
  file.data_ = static_cast<const unsigned char*>(data);
  file.size_ = size;
  file.borrowed_ = true;
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), borrowed_(other.borrowed_) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(borrowed_, other.borrowed_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr && !borrowed_) ::munmap(const_cast<unsigned char*>(data_), size_);
}

void MappedFile::will_need() const {
  if (data_ != nullptr && !borrowed_) ::madvise(const_cast<unsigned char*>(data_), size_, MADV_WILLNEED);
}

std::optional<uint64_t> regular_file_size(const std::string& path) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return static_cast<uint64_t>(info.st_size);
}

bool is_inner_path(std::string_view name) {
  if (name.empty() || name.find('\0') != std::string_view::npos || name.find('\\') != std::string_view::npos) {
    return false;
  }
  while (true) {
    const size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    name.remove_prefix(slash + 1);
  }
}

}  // namespace specc
