// A safetensors file, mapped read-only. Every tensor it names lies inside the file and overlaps no other.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "dtype.h"
#include "mapped_file.h"

namespace specc {

class Safetensors {
 public:
  struct Tensor {
    int32_t dtype;
    std::vector<int64_t> shape;
    uint64_t offset;  // from the start of the file
    uint64_t bytes;
  };

  Safetensors() = default;
  // `path`: how messages name it. Throws Error(Code::File or Code::Damaged).
  Safetensors(MappedFile file, const std::string& path);

  const Tensor* find(const std::string& name) const;
  const void* data(const Tensor& tensor) const { return file_.data() + tensor.offset; }
  size_t count() const { return tensors_.size(); }
  uint64_t file_size() const { return file_.size(); }

 private:
  MappedFile file_;
  std::unordered_map<std::string, Tensor> tensors_;
};

}  // namespace specc
