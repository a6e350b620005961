// A shared library loaded from one very file, whatever had its name before; or code that the program was linked with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

namespace specc {

// Which file it is, and in which state: another one in the same place differs.
struct FileIdentity {
  uint64_t device = 0, inode = 0;
  int64_t seconds = 0, nanoseconds = 0, bytes = 0;

  bool same_place(const FileIdentity& other) const { return device == other.device && inode == other.inode; }
  bool operator<(const FileIdentity& other) const { return key() < other.key(); }
  uint64_t hash() const;
  bool operator!=(const FileIdentity& other) const { return key() != other.key(); }

 private:
  std::tuple<uint64_t, uint64_t, int64_t, int64_t, int64_t> key() const {
    return {device, inode, seconds, nanoseconds, bytes};
  }
};

// The dynamic linker takes a path it knows for the library it loaded from there, even if the file was replaced since,
// and even after dlclose, which need not unload. So the library is loaded from an open descriptor by a path that is
// spelt differently for every file.
class SharedObject {
 public:
  explicit SharedObject(std::string path);  // opens the file, loads nothing. Throws Error(ModelRefused)
  // From memory, through an anonymous file: every one is a library of its own. Throws Error(ModelRefused).
  SharedObject(std::string name, const void* data, size_t size);
  static SharedObject linked(void* entry);  // specc_model_entry, and no other symbol
  void load();                              // throws Error(ModelRefused)

  const FileIdentity& identity() const { return identity_; }
  void* symbol(const char* name) const;  // of a loaded library; null if it has none of that name

 private:
  class Descriptor {
   public:
    explicit Descriptor(int number = -1) : number_(number) {}
    Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
    ~Descriptor();
    int number() const { return number_; }

   private:
    int number_;
  };
  SharedObject() = default;
  SharedObject(std::string path, Descriptor file);

  struct Close {
    void operator()(void* handle) const;
  };

  std::string path_;
  Descriptor file_;
  FileIdentity identity_;
  std::unique_ptr<void, Close> handle_;
  void* entry_ = nullptr;  // of linked code
};

}  // namespace specc
