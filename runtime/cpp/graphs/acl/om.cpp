#include "acl/om.h"

#include <cstring>

#include "core/error.h"

namespace specc {
namespace {

// Offsets of pieces within an allocation: 64 suffices for data, and ACL reads up to 32 bytes beyond a piece.
constexpr size_t kAlignment = 512;

size_t padded(size_t bytes) { return (bytes + 32 + kAlignment - 1) / kAlignment * kAlignment; }

bool is_wide(const specc_graph_value& value) { return value.dtype == SPECC_I64; }  // int32 on the device

size_t elements(const specc_graph_value& value) {
  size_t count = 1;
  for (int32_t d = 0; d < value.ndim; ++d) count *= static_cast<size_t>(value.shape[d]);
  return count;
}

size_t device_bytes(const specc_graph_value& value) {
  return elements(value) * (is_wide(value) ? sizeof(int32_t) : dtype_size(value.dtype));
}

aclDataType type_of(const specc_graph_value& value) {
  switch (value.dtype) {
    case SPECC_F16:
      return ACL_FLOAT16;
    case SPECC_BF16:
      return ACL_BF16;
    case SPECC_BOOL:
      return ACL_BOOL;
    case SPECC_I32:
    case SPECC_I64:
      return ACL_INT32;
    default:
      return ACL_FLOAT;
  }
}

std::string described(size_t bytes, int type) {
  return std::to_string(bytes) + " bytes of aclDataType " + std::to_string(type);
}

void narrow(const void* from, char* to, size_t count) {
  const auto* wide = static_cast<const int64_t*>(from);
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<int32_t>(wide[i]);
    std::memcpy(to + i * sizeof value, &value, sizeof value);
  }
}

void widen(const char* from, void* to, size_t count) {
  auto* wide = static_cast<int64_t*>(to);
  for (size_t i = 0; i < count; ++i) {
    int32_t value = 0;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    wide[i] = value;
  }
}

}  // namespace

Om::Om(const Npu& npu, DeviceMemory& memory, const specc_graph& graph, const std::string& path,
       const DevicePiece& workspace, const std::vector<WeightFile>& weights)
    : npu_(npu),
      graph_(graph),
      path_(path),
      inputs_(static_cast<size_t>(graph.n_in)),
      outputs_(static_cast<size_t>(graph.n_out)) {
  try {
    load(path, workspace, weights);
    check_inputs();
    check_outputs();
    make_buffers(memory);
  } catch (...) {
    close();
    throw;
  }
}

Om::~Om() { close(); }

void Om::close() noexcept {
  const Acl& acl = npu_.acl();
  for (std::vector<Slot>* slots : {&inputs_, &outputs_}) {
    for (Slot& slot : *slots) {
      if (slot.buffer != nullptr) acl.aclDestroyDataBuffer(slot.buffer);
    }
  }
  if (in_ != nullptr) acl.aclmdlDestroyDataset(in_);
  if (out_ != nullptr) acl.aclmdlDestroyDataset(out_);
  if (pinned_ != nullptr) acl.aclrtFreeHost(pinned_);
  if (desc_ != nullptr) acl.aclmdlDestroyDesc(desc_);
  if (loaded_) acl.aclmdlUnload(id_);
}

void Om::refuse(const std::string& what, const std::string& expected, const std::string& found) const {
  throw Error(Code::BadModel, "an OM is not of the artifact's graph")
      .where(path_ + ", " + what)
      .expected(expected)
      .found(found)
      .cure("delete the folder om, and run build_om.sh");
}

void Om::load(const std::string& path, const DevicePiece& workspace, const std::vector<WeightFile>& weights) {
  const Acl& acl = npu_.acl();
  const char* where = path.c_str();
  struct Config {
    const Acl& acl;
    aclmdlConfigHandle* handle;
    ~Config() { acl.aclmdlDestroyConfigHandle(handle); }
  } config{acl, acl.aclmdlCreateConfigHandle()};
  const auto set = [&](aclmdlConfigAttr attribute, const auto& value) {
    npu_.check(acl.aclmdlSetConfigOpt(config.handle, attribute, &value, sizeof value), "aclmdlSetConfigOpt", where);
  };
  void* const work = workspace.data();
  set(ACL_MDL_LOAD_TYPE_SIZET,
      static_cast<size_t>(work != nullptr ? ACL_MDL_LOAD_FROM_FILE_WITH_MEM : ACL_MDL_LOAD_FROM_FILE));
  set(ACL_MDL_PATH_PTR, where);
  if (work != nullptr) {
    set(ACL_MDL_WORKSPACE_ADDR_PTR, work);
    set(ACL_MDL_WORKSPACE_SIZET, workspace.bytes());
  }
  for (const WeightFile& file : weights) {
    npu_.check(acl.aclmdlSetExternalWeightAddress(config.handle, file.name.c_str(), file.data.data(),
                                                  file.data.bytes()),
               "aclmdlSetExternalWeightAddress", where);
  }
  npu_.check(acl.aclmdlLoadWithConfig(config.handle, &id_), "aclmdlLoadWithConfig", where);
  loaded_ = true;
  desc_ = acl.aclmdlCreateDesc();
  npu_.check(acl.aclmdlGetDesc(desc_, id_), "aclmdlGetDesc", where);
}

void Om::check_inputs() {
  const Acl& acl = npu_.acl();
  const size_t count = acl.aclmdlGetNumInputs(desc_);
  if (count != inputs_.size()) refuse("inputs", std::to_string(inputs_.size()), std::to_string(count));
  for (size_t i = 0; i < count; ++i) {
    const char* named = acl.aclmdlGetInputNameByIndex(desc_, i);
    const char* name = named != nullptr ? named : "";
    size_t index = 0;
    while (index < count && std::strcmp(graph_.in[index].name, name) != 0) ++index;
    if (index == count) refuse("input " + std::to_string(i), "a name of the ONNX model's inputs", name);
    const specc_graph_value& value = graph_.in[index];
    const size_t bytes = acl.aclmdlGetInputSizeByIndex(desc_, i);
    const aclDataType type = acl.aclmdlGetInputDataType(desc_, i);
    if (bytes != device_bytes(value) || type != type_of(value)) {
      refuse(std::string("input ") + name, described(device_bytes(value), type_of(value)), described(bytes, type));
    }
    inputs_[index].bytes = bytes;
    order_.push_back(index);
  }
}

void Om::check_outputs() {
  const Acl& acl = npu_.acl();
  const size_t count = acl.aclmdlGetNumOutputs(desc_);
  if (count != outputs_.size()) refuse("outputs", std::to_string(outputs_.size()), std::to_string(count));
  for (size_t i = 0; i < count; ++i) {
    const specc_graph_value& value = graph_.out[i];
    const size_t bytes = acl.aclmdlGetOutputSizeByIndex(desc_, i);
    const aclDataType type = acl.aclmdlGetOutputDataType(desc_, i);
    if (bytes != device_bytes(value) || type != type_of(value)) {
      refuse("output " + std::to_string(i), described(device_bytes(value), type_of(value)), described(bytes, type));
    }
    outputs_[i].bytes = bytes;
  }
}

void Om::make_buffers(DeviceMemory& memory) {
  const Acl& acl = npu_.acl();
  size_t end = 0;
  const auto lay = [&end](Slot& slot) {
    slot.at = end;
    end += padded(slot.bytes);
  };
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!graph_.in[i].resident) lay(inputs_[i]);
  }
  up_ = end;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (!graph_.out[i].resident && !graph_.out[i].lazy) lay(outputs_[i]);
  }
  down_ = end - up_;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (graph_.out[i].lazy) lay(outputs_[i]);
  }
  const size_t shared = end;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (graph_.out[i].resident) lay(outputs_[i]);
  }
  buffers_ = DevicePiece(memory, end, path_.c_str());
  void* pinned = nullptr;
  npu_.check(acl.aclrtMallocHost(&pinned, shared + kAlignment), "aclrtMallocHost", path_.c_str());
  pinned_ = static_cast<char*>(pinned);
  std::memset(pinned_, 0, shared);
  in_ = acl.aclmdlCreateDataset();
  out_ = acl.aclmdlCreateDataset();
  for (const size_t index : order_) bind(inputs_[index], in_, buffers_.data() + inputs_[index].at);
  for (Slot& slot : outputs_) bind(slot, out_, buffers_.data() + slot.at);
}

void Om::bind(Slot& slot, aclmdlDataset* dataset, void* data) {
  const Acl& acl = npu_.acl();
  slot.buffer = acl.aclCreateDataBuffer(data, slot.bytes);
  slot.bound = data;
  npu_.check(acl.aclmdlAddDatasetBuffer(dataset, slot.buffer), "aclmdlAddDatasetBuffer", path_.c_str());
}

void Om::run(const specc_graph_data* in, specc_graph_data* out) {
  const Acl& acl = npu_.acl();
  const char* where = graph_.name;
  const aclrtStream stream = npu_.stream();
  if (unfinished_) npu_.wait(where);  // it may still read what is pinned
  unfinished_ = true;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    Slot& slot = inputs_[i];
    if (!graph_.in[i].resident) {
      if (is_wide(graph_.in[i])) {
        narrow(in[i].data, pinned_ + slot.at, elements(graph_.in[i]));
      } else {
        std::memcpy(pinned_ + slot.at, in[i].data, slot.bytes);
      }
    } else if (slot.bound != in[i].data) {  // another session's
      npu_.check(acl.aclUpdateDataBuffer(slot.buffer, in[i].data, slot.bytes), "aclUpdateDataBuffer", where);
      slot.bound = in[i].data;
    }
  }
  if (up_ > 0) {
    npu_.check(acl.aclrtMemcpyAsync(buffers_.data(), up_, pinned_, up_, ACL_MEMCPY_HOST_TO_DEVICE, stream),
               "aclrtMemcpyAsync", where);
  }
  npu_.check(acl.aclmdlExecuteAsync(id_, in_, out_, stream), "aclmdlExecuteAsync", where);
  if (down_ > 0) {
    npu_.check(acl.aclrtMemcpyAsync(pinned_ + up_, down_, buffers_.data() + up_, down_, ACL_MEMCPY_DEVICE_TO_HOST,
                                    stream),
               "aclrtMemcpyAsync", where);
    npu_.wait(where);
    unfinished_ = false;
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const Slot& slot = outputs_[i];
    if (graph_.out[i].resident) {
      out[i] = {buffers_.data() + slot.at, slot.bytes};
    } else if (graph_.out[i].lazy) {
      continue;
    } else if (is_wide(graph_.out[i])) {
      widen(pinned_ + slot.at, out[i].data, elements(graph_.out[i]));
    } else {
      std::memcpy(out[i].data, pinned_ + slot.at, slot.bytes);
    }
  }
}

void Om::fetch(size_t output, void* to) {
  const Slot& slot = outputs_[output];
  npu_.check(npu_.acl().aclrtMemcpyAsync(pinned_ + slot.at, slot.bytes, buffers_.data() + slot.at, slot.bytes,
                                         ACL_MEMCPY_DEVICE_TO_HOST, npu_.stream()),
             "aclrtMemcpyAsync", graph_.name);
  npu_.wait(graph_.name);
  unfinished_ = false;
  std::memcpy(to, pinned_ + slot.at, slot.bytes);
}

}  // namespace specc
