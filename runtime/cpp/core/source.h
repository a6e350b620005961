// Where the files of an artifact are: in a folder, or in memory that the caller owns.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "mapped_file.h"
#include "shared_object.h"
#include "specc.h"

namespace specc {

class Source {
 public:
  static std::unique_ptr<Source> folder(const std::string& path);
  // Keeps `from`. Throws Error(Option) if it lacks what it must have.
  static std::unique_ptr<Source> memory(const specc_source& from);
  virtual ~Source() = default;

  virtual std::string name(const std::string& file) const = 0;  // as messages call it
  virtual std::optional<uint64_t> size(const std::string& file) const = 0;
  virtual MappedFile map(const std::string& file) const = 0;  // throws Error(File)
  // A library that can be loaded. Throws Error(ModelRefused).
  virtual SharedObject code(const std::string& file) const = 0;
  // Which model.so the code that the program was linked with is, by its SHA-256; empty where it was not.
  virtual std::string linked_build() const { return {}; }
  // The folder, which devices read files from by themselves, with a slash at its end; empty in memory.
  virtual std::string directory() const { return {}; }
};

}  // namespace specc
