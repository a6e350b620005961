#include "source.h"

#include "error.h"

namespace specc {
namespace {

class Folder : public Source {
 public:
  explicit Folder(const std::string& path) : path_(path) {
    // With a slash, dlopen takes a path; without, it would search the system's library folders.
    while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
    if (!path_.empty() && path_.find('/') == std::string::npos) path_ = "./" + path_;
  }

  std::string name(const std::string& file) const override { return path_ + "/" + file; }
  std::optional<uint64_t> size(const std::string& file) const override { return regular_file_size(name(file)); }
  MappedFile map(const std::string& file) const override { return MappedFile(name(file)); }
  SharedObject code(const std::string& file) const override { return SharedObject(name(file)); }
  std::string directory() const override { return path_ + "/"; }

 private:
  std::string path_;
};

class Memory : public Source {
 public:
  explicit Memory(const specc_source& from) : from_(from) {
    if (from.size != sizeof from) {
      throw Error(Code::Option, "source.size is not that of a specc_source")
          .expected(std::to_string(sizeof from))
          .found(std::to_string(from.size));
    }
    if (from.find == nullptr) throw Error(Code::Option, "an argument is NULL").where("source.find");
    if (from.model != nullptr && from.build == nullptr) {
      throw Error(Code::Option, "an argument is NULL").where("source.build");
    }
  }

  std::string name(const std::string& file) const override { return "memory:" + file; }
  std::optional<uint64_t> size(const std::string& file) const override {
    const auto found = bytes(file);
    return found ? std::optional<uint64_t>(found->size) : std::nullopt;
  }
  MappedFile map(const std::string& file) const override {
    const Bytes found = required(file);
    return MappedFile::borrowed(found.data, found.size);
  }
  std::string linked_build() const override { return from_.model != nullptr ? from_.build : ""; }
  SharedObject code(const std::string& file) const override {
    if (from_.model != nullptr) return SharedObject::linked(reinterpret_cast<void*>(from_.model));
    const Bytes found = required(file);
    return SharedObject(name(file), found.data, found.size);
  }

 private:
  struct Bytes {
    const void* data;
    size_t size;
  };

  std::optional<Bytes> bytes(const std::string& file) const {
    Bytes found{nullptr, 0};
    if (from_.find(from_.user, file.c_str(), &found.data, &found.size) == 0) return std::nullopt;
    if (found.data == nullptr && found.size > 0) {
      throw Error(Code::File, "source.find found a file and gave no bytes").where(name(file));
    }
    return found;
  }

  Bytes required(const std::string& file) const {
    if (const auto found = bytes(file)) return *found;
    throw Error(Code::File, "a file of the artifact is missing").where(name(file));
  }

  specc_source from_;
};

}  // namespace

std::unique_ptr<Source> Source::folder(const std::string& path) { return std::make_unique<Folder>(path); }
std::unique_ptr<Source> Source::memory(const specc_source& from) { return std::make_unique<Memory>(from); }

}  // namespace specc
