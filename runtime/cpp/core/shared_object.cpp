#include "shared_object.h"

#include <cerrno>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
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
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
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
  const std::string unique = spelt(file_.number(), identity_.hash());
  const bool named = ::access(unique.c_str(), R_OK) == 0;  // else there is no /proc: not Linux
  handle_.reset(dlopen(named ? unique.c_str() : path_.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (handle_ == nullptr) throw not_loaded(path_, dlerror());
}

void* SharedObject::symbol(const char* name) const { return dlsym(handle_.get(), name); }

}  // namespace specc
