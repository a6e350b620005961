#include "shared_object.h"

#include <cerrno>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"

namespace specc {
namespace {

Error not_loaded(const std::string& path, const char* reason) {
  return Error(Code::ModelRefused, "the model library cannot be loaded")
      .where(path)
      .found(reason != nullptr ? reason : "unknown")
      .cure("compile the artifact again with this version of specc");
}

// A path to the descriptor's file. "a//b" and "a/./b" mean the same, which gives a bit to spell at every slash.
std::string spelt(int descriptor, uint64_t bits) {
  std::string path = "/proc/self/fd/";
  for (; bits != 0; bits >>= 1) path += (bits & 1) != 0 ? "./" : "/";
  return path + std::to_string(descriptor);
}

// A file without a name that holds the bytes: the dynamic linker reads files alone.
int anonymous_file(const std::string& name, const void* data, size_t size) {
#if defined(__linux__)
  const int number = ::memfd_create("specc-model", MFD_CLOEXEC);
  if (number < 0) throw not_loaded(name, std::strerror(errno));
  for (size_t done = 0; done < size;) {
    const ssize_t written = ::write(number, static_cast<const char*>(data) + done, size - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int reason = errno;
      ::close(number);
      throw not_loaded(name, std::strerror(reason));
    }
    done += static_cast<size_t>(written);
  }
  return number;
#else
  (void)data, (void)size;
  throw not_loaded(name, "this system loads code from files alone: link it with the program (specc_source.model)");
#endif
}

}  // namespace

uint64_t FileIdentity::hash() const {
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a, by words, mixed
  for (const uint64_t word : {device, inode, static_cast<uint64_t>(seconds), static_cast<uint64_t>(nanoseconds),
                              static_cast<uint64_t>(bytes)}) {
    hash = (hash ^ word) * 0x100000001B3u;
    hash ^= hash >> 29;
  }
  return hash;
}

SharedObject::Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

void SharedObject::Close::operator()(void* handle) const { dlclose(handle); }

SharedObject::SharedObject(std::string path)
    : SharedObject(path, Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC))) {}

SharedObject::SharedObject(std::string name, const void* data, size_t size)
    : SharedObject(name, Descriptor(anonymous_file(name, data, size))) {}

SharedObject SharedObject::linked(void* entry) {
  SharedObject object;
  object.path_ = "code linked with the program";
  object.entry_ = entry;
  object.identity_.inode = reinterpret_cast<uintptr_t>(entry);  // on device 0, which no file is on
  return object;
}

SharedObject::SharedObject(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {
  struct stat about {};
  if (file_.number() < 0 || ::fstat(file_.number(), &about) != 0) throw not_loaded(path_, std::strerror(errno));
#if defined(__APPLE__)
  const timespec modified = about.st_mtimespec;
#else
  const timespec modified = about.st_mtim;
#endif
  identity_.device = about.st_dev;
  identity_.inode = about.st_ino;
  identity_.seconds = modified.tv_sec;
  identity_.nanoseconds = modified.tv_nsec;
  identity_.bytes = about.st_size;
}

void SharedObject::load() {
  if (entry_ != nullptr) return;
  const std::string unique = spelt(file_.number(), identity_.hash());
  const bool named = ::access(unique.c_str(), R_OK) == 0;  // else there is no /proc: not Linux
  handle_.reset(dlopen(named ? unique.c_str() : path_.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (handle_ == nullptr) throw not_loaded(path_, dlerror());
}

void* SharedObject::symbol(const char* name) const {
  if (entry_ != nullptr) return std::strcmp(name, "specc_model_entry") == 0 ? entry_ : nullptr;
  return dlsym(handle_.get(), name);
}

}  // namespace specc
