#include "safetensors.h"

#include <algorithm>

#include "error.h"
#include "json_cursor.h"

namespace specc {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit

uint64_t header_length(const MappedFile& file, const std::string& path) {
  if (file.size() < kLengthBytes) throw Error(Code::File, "the weights file is truncated").where(path);
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{file.data()[i]} << (8 * i);
  if (length > kMaxHeader || length > file.size() - kLengthBytes) {
    throw Error(Code::File, "the weights file is truncated or damaged: its header does not fit in it")
        .where(path)
        .found("a header of " + std::to_string(length) + " bytes in a file of " + std::to_string(file.size()));
  }
  return length;
}

Safetensors::Tensor read_tensor(const JsonCursor& entry, uint64_t data_start, uint64_t data_size) {
  const DtypeInfo* dtype = dtype_named(entry.at("dtype").string());
  if (dtype == nullptr) entry.at("dtype").fail("a tensor has an unknown dtype");
  std::vector<int64_t> shape = entry.at("shape").integers(0, kMaxBytes);
  if (shape.size() > kMaxRank) entry.fail("a tensor has too many dimensions");
  const auto offsets = entry.at("data_offsets").integers(0, INT64_MAX);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || static_cast<uint64_t>(offsets[1]) > data_size) {
    throw Error(Code::File, "a tensor lies outside the weights file")
        .where(entry.path())
        .cure("copy the artifact again");
  }
  const auto bytes = checked_bytes(shape, dtype->bytes);
  if (!bytes || *bytes != offsets[1] - offsets[0]) entry.fail("a tensor's shape and its bytes disagree");
  return {dtype->number, std::move(shape), data_start + static_cast<uint64_t>(offsets[0]),
          static_cast<uint64_t>(*bytes)};
}

void refuse_overlap(const std::unordered_map<std::string, Safetensors::Tensor>& tensors, const std::string& path) {
  std::vector<std::pair<uint64_t, uint64_t>> spans;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.bytes > 0) spans.emplace_back(tensor.offset, tensor.offset + tensor.bytes);
  }
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].first < spans[i - 1].second) throw Error(Code::Damaged, "two tensors overlap").where(path);
  }
}

}  // namespace

Safetensors::Safetensors(MappedFile file, const std::string& path) : file_(std::move(file)) {
  const uint64_t length = header_length(file_, path);
  const std::string_view header(reinterpret_cast<const char*>(file_.data()) + kLengthBytes, length);
  const Json document = Json::parse(header, path);
  const uint64_t data_start = kLengthBytes + length;
  for (const auto& entry : JsonCursor(document, path).entries()) {
    if (entry.key == "__metadata__") continue;
    tensors_.emplace(entry.key, read_tensor(entry.value, data_start, file_.size() - data_start));
  }
  refuse_overlap(tensors_, path);
  file_.will_need();
}

const Safetensors::Tensor* Safetensors::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace specc
