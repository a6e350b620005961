// CANN's libascendcl, played for tests: only the calls that specc makes, over host memory, and models that whoever loads
// this library runs (tests/backends/acl/double.py, by onnxruntime). It is stricter than the original need be:
//   - device memory cannot be touched outside of these calls, and is NaN until written; so are results before a model runs;
//   - what is asynchronous happens when somebody waits, and not before; its host memory must be pinned;
//   - a thread must have set the context; sizes are checked; what is not given back is counted;
//   - weights that a model shares must have been copied before it is loaded.
// SPECC_DOUBLE_FAIL=CALL:CODE:N fails the Nth call of CALL, _SKIP=CALL makes it do nothing, _SOC names the chip,
// _GROW=NAME gives the model NAME inputs of another size.
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <sys/mman.h>
#include <vector>

#ifdef SPECC_REAL_ACL
#include "acl/acl.h"
#else
#include "acl/declared.h"
#endif

namespace {

constexpr aclError kInvalid = 100000, kNoContext = 107002, kLoad = 545001;
constexpr size_t kWorkspace = size_t{3} << 20;
constexpr char kMark[] = "specc's fake OM";
constexpr int kPoison = 0xFF;  // NaN in f32 and in f16, and no token

struct Value {
  std::string name;
  int type;
  size_t bytes;
};
struct Model {
  std::vector<Value> in, out;
};

std::map<uint32_t, Model> models;
std::map<char*, size_t> device, pinned;
std::map<std::string, long> counts;  // calls by name, and what lives
std::vector<std::function<aclError()>> stream;
std::string said;
uint32_t last_model = 0;
thread_local aclrtContext current = nullptr;
int32_t (*load_model)(uint32_t id, const char* file) = nullptr;
int32_t (*run_model)(uint32_t id, void* const* in, void* const* out) = nullptr;

aclError wrong(aclError code, const std::string& text) {
  said = text;
  return code;
}

std::string setting(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

// Counts a call; what the environment plans for it, else `usual`.
aclError planned(const char* call, aclError usual = 0) {
  const long number = ++counts[call];
  std::istringstream plan(setting("SPECC_DOUBLE_FAIL"));
  std::string name, code, at;
  std::getline(plan, name, ':');
  std::getline(plan, code, ':');
  std::getline(plan, at, ':');
  if (name == call && std::stol(at) == number) return wrong(std::stoi(code), "planned");
  return usual;
}

bool within(const std::map<char*, size_t>& memory, const void* data, size_t bytes) {
  auto* at = static_cast<char*>(const_cast<void*>(data));
  auto found = memory.upper_bound(at);
  if (found == memory.begin()) return false;
  --found;
  return at + bytes <= found->first + found->second;
}

// Device memory may be touched while one of these lives.
struct Touch {
  Touch() { set(PROT_READ | PROT_WRITE); }
  ~Touch() { set(PROT_NONE); }
  static void set(int how) {
    for (auto& [data, bytes] : device) mprotect(data, bytes, how);
  }
};

aclError check_copy(const void* to, size_t room, const void* from, size_t bytes, int kind, bool waits) {
  if (bytes > room) return wrong(kInvalid, "a copy larger than its target");
  const bool to_device = kind != ACL_MEMCPY_DEVICE_TO_HOST, from_device = kind != ACL_MEMCPY_HOST_TO_DEVICE;
  if (within(device, to, bytes) != to_device || within(device, from, bytes) != from_device) {
    return wrong(kInvalid, "a copy between other memories than it says");
  }
  if (!waits && ((!to_device && !within(pinned, to, bytes)) || (!from_device && !within(pinned, from, bytes)))) {
    return wrong(kInvalid, "host memory of an asynchronous copy that is not pinned");
  }
  return 0;
}

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

struct aclDataBuffer {
  void* data;
  size_t bytes;
};
struct aclmdlDataset {
  std::vector<aclDataBuffer*> buffers;
};
struct aclmdlDesc {
  uint32_t id;
};
struct aclmdlConfigHandle {
  std::map<int, std::string> options;
  std::map<std::string, std::pair<void*, size_t>> weights;
};

extern "C" {

// For the test that plays the NPU.
void double_play(int32_t (*load)(uint32_t, const char*), int32_t (*run)(uint32_t, void* const*, void* const*)) {
  load_model = load;
  run_model = run;
}
void double_value(uint32_t id, int32_t is_output, const char* name, int32_t type, size_t bytes) {
  (is_output != 0 ? models[id].out : models[id].in).push_back({name, type, bytes});
}
long double_count(const char* what) { return counts[what]; }
void double_forget_calls() {
  for (auto& [name, count] : counts) count = name.rfind("acl", 0) == 0 ? 0 : count;
}

aclError aclInit(const char*) { return planned("aclInit"); }
aclError aclFinalizeReference(uint64_t*) { return planned("aclFinalizeReference"); }
const char* aclGetRecentErrMsg() { return said.c_str(); }
const char* aclrtGetSocName() {
  static std::string name;
  name = setting("SPECC_DOUBLE_SOC");
  return name.empty() ? "Ascend910B3" : name.c_str();
}

aclError aclrtSetDevice(int32_t number) {
  return planned("aclrtSetDevice", number == 0 ? 0 : wrong(107001, "there is one NPU, 0"));
}
aclError aclrtResetDevice(int32_t) { return planned("aclrtResetDevice"); }
aclError aclrtCreateContext(aclrtContext* context, int32_t) {
  if (const aclError code = planned("aclrtCreateContext")) return code;
  *context = current = &models;
  ++counts["contexts"];
  return 0;
}
aclError aclrtDestroyContext(aclrtContext) {
  --counts["contexts"];
  return 0;
}
aclError aclrtSetCurrentContext(aclrtContext context) {
  current = context;
  return 0;
}
aclError aclrtCreateStream(aclrtStream* made) {
  if (const aclError code = planned("aclrtCreateStream")) return code;
  *made = &stream;
  ++counts["streams"];
  return 0;
}
aclError aclrtDestroyStream(aclrtStream) {
  --counts["streams"];
  return 0;
}
aclError aclrtSynchronizeStream(aclrtStream) {
  if (current == nullptr) return kNoContext;
  const Touch touch;
  aclError failed = planned("aclrtSynchronizeStream");
  for (const auto& step : stream) {
    if (failed == 0) failed = step();
  }
  stream.clear();
  return failed;
}

aclError aclrtMalloc(void** made, size_t bytes, aclrtMemMallocPolicy) {
  if (current == nullptr) return kNoContext;
  if (const aclError code = planned("aclrtMalloc")) return code;
  *made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::memset(*made, kPoison, bytes);
  mprotect(*made, bytes, PROT_NONE);
  device[static_cast<char*>(*made)] = bytes;
  counts["device_bytes"] += static_cast<long>(bytes);
  ++counts["device"];
  return 0;
}
aclError aclrtFree(void* data) {
  const auto found = device.find(static_cast<char*>(data));
  if (found == device.end()) return kInvalid;
  munmap(data, found->second);
  counts["device_bytes"] -= static_cast<long>(found->second);
  device.erase(found);
  --counts["device"];
  return 0;
}
aclError aclrtMallocHost(void** made, size_t bytes) {
  if (const aclError code = planned("aclrtMallocHost")) return code;
  *made = std::malloc(bytes);
  pinned[static_cast<char*>(*made)] = bytes;
  ++counts["pinned"];
  return 0;
}
aclError aclrtFreeHost(void* data) {
  if (pinned.erase(static_cast<char*>(data)) == 0) return kInvalid;
  std::free(data);
  --counts["pinned"];
  return 0;
}
aclError aclrtMemset(void* data, size_t room, int32_t value, size_t bytes) {
  if (const aclError code = planned("aclrtMemset")) return code;
  if (bytes > room || !within(device, data, bytes)) return kInvalid;
  if (setting("SPECC_DOUBLE_SKIP") == "aclrtMemset") return 0;
  const Touch touch;
  std::memset(data, value, bytes);
  return 0;
}
aclError aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind kind) {
  if (const aclError code = planned("aclrtMemcpy", check_copy(to, room, from, bytes, kind, true))) return code;
  const Touch touch;
  std::memcpy(to, from, bytes);
  return 0;
}
aclError aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, aclrtMemcpyKind kind, aclrtStream) {
  if (current == nullptr) return kNoContext;
  if (const aclError code = planned("aclrtMemcpyAsync", check_copy(to, room, from, bytes, kind, false))) return code;
  stream.emplace_back([=] {
    if (within(device, to, bytes) && within(device, from, bytes)) ++counts["commits"];
    if (kind == ACL_MEMCPY_DEVICE_TO_HOST) counts["downloaded"] += static_cast<long>(bytes);
    std::memcpy(to, from, bytes);
    return 0;
  });
  return 0;
}

aclError aclmdlQuerySize(const char*, size_t* work, size_t* weights) {
  *work = kWorkspace;
  *weights = 0;
  return planned("aclmdlQuerySize");
}
aclmdlConfigHandle* aclmdlCreateConfigHandle() {
  ++counts["configs"];
  return new aclmdlConfigHandle;
}
aclError aclmdlDestroyConfigHandle(aclmdlConfigHandle* handle) {
  --counts["configs"];
  delete handle;
  return 0;
}
aclError aclmdlSetConfigOpt(aclmdlConfigHandle* handle, aclmdlConfigAttr attribute, const void* value, size_t bytes) {
  handle->options[attribute] = attribute == ACL_MDL_PATH_PTR
                                   ? *static_cast<const char* const*>(value)
                                   : std::string(static_cast<const char*>(value), bytes);
  return 0;
}
aclError aclmdlSetExternalWeightAddress(aclmdlConfigHandle* handle, const char* name, void* data, size_t bytes) {
  if (bytes % 32 != 0 || !within(device, data, bytes)) return kInvalid;
  handle->weights[name] = {data, bytes};
  return planned("aclmdlSetExternalWeightAddress");
}
aclError aclmdlLoadWithConfig(const aclmdlConfigHandle* handle, uint32_t* id) {
  if (const aclError code = planned("aclmdlLoadWithConfig")) return code;
  size_t work = 0;
  const auto option = [&](int attribute) { return handle->options.find(attribute)->second; };
  std::memcpy(&work, option(ACL_MDL_WORKSPACE_SIZET).data(), sizeof work);
  if (work < kWorkspace) return wrong(kInvalid, "too small a workspace");
  const std::string path = option(ACL_MDL_PATH_PTR), folder = path.substr(0, path.find_last_of('/'));
  std::istringstream om(content(path));
  std::string mark, model;
  std::getline(om, mark);
  std::getline(om, model);
  if (mark != kMark) return wrong(kLoad, path + " is no OM");
  const Touch touch;
  if (DIR* files = opendir((folder + "/weight").c_str())) {
    while (const dirent* entry = readdir(files)) {
      if (entry->d_name[0] == '.') continue;
      const std::string bytes = content(folder + "/weight/" + entry->d_name);
      const auto shared = handle->weights.find(entry->d_name);
      const bool equal = shared != handle->weights.end() && shared->second.second >= bytes.size() &&
                         std::memcmp(shared->second.first, bytes.data(), bytes.size()) == 0;
      if (!equal) said = std::string(entry->d_name) + " is not on the device";
      if (!equal) break;
    }
    closedir(files);
  }
  if (said.find("is not on the device") != std::string::npos) return kLoad;
  *id = ++last_model;
  if (load_model(*id, (folder + "/../" + model).c_str()) != 0) return wrong(kLoad, "onnxruntime cannot load it");
  const std::string grown = setting("SPECC_DOUBLE_GROW");
  if (!grown.empty() && path.find("/" + grown) != std::string::npos) models[*id].in[0].bytes += 4;
  ++counts["models"];
  return 0;
}
aclError aclmdlUnload(uint32_t id) {
  --counts["models"];
  return models.erase(id) == 1 ? 0 : kInvalid;
}

aclmdlDesc* aclmdlCreateDesc() {
  ++counts["descriptions"];
  return new aclmdlDesc{0};
}
aclError aclmdlDestroyDesc(aclmdlDesc* desc) {
  --counts["descriptions"];
  delete desc;
  return 0;
}
aclError aclmdlGetDesc(aclmdlDesc* desc, uint32_t id) {
  desc->id = id;
  return planned("aclmdlGetDesc");
}
size_t aclmdlGetNumInputs(aclmdlDesc* desc) { return models[desc->id].in.size(); }
size_t aclmdlGetNumOutputs(aclmdlDesc* desc) { return models[desc->id].out.size(); }
size_t aclmdlGetInputSizeByIndex(aclmdlDesc* desc, size_t index) { return models[desc->id].in[index].bytes; }
size_t aclmdlGetOutputSizeByIndex(aclmdlDesc* desc, size_t index) { return models[desc->id].out[index].bytes; }
const char* aclmdlGetInputNameByIndex(const aclmdlDesc* desc, size_t index) {
  return models[desc->id].in[index].name.c_str();
}
aclDataType aclmdlGetInputDataType(const aclmdlDesc* desc, size_t index) {
  return static_cast<aclDataType>(models[desc->id].in[index].type);
}
aclDataType aclmdlGetOutputDataType(const aclmdlDesc* desc, size_t index) {
  return static_cast<aclDataType>(models[desc->id].out[index].type);
}

aclmdlDataset* aclmdlCreateDataset() {
  ++counts["datasets"];
  ++counts["aclmdlCreateDataset"];
  return new aclmdlDataset;
}
aclError aclmdlDestroyDataset(const aclmdlDataset* dataset) {
  --counts["datasets"];
  delete dataset;
  return 0;
}
aclError aclmdlAddDatasetBuffer(aclmdlDataset* dataset, aclDataBuffer* buffer) {
  dataset->buffers.push_back(buffer);
  return planned("aclmdlAddDatasetBuffer");
}
aclDataBuffer* aclCreateDataBuffer(void* data, size_t bytes) {
  ++counts["buffers"];
  ++counts["aclCreateDataBuffer"];
  return new aclDataBuffer{data, bytes};
}
aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  --counts["buffers"];
  delete buffer;
  return 0;
}
aclError aclUpdateDataBuffer(aclDataBuffer* buffer, void* data, size_t bytes) {
  *buffer = {data, bytes};
  return planned("aclUpdateDataBuffer");
}
aclError aclmdlExecuteAsync(uint32_t id, const aclmdlDataset* in, aclmdlDataset* out, aclrtStream) {
  if (current == nullptr) return kNoContext;
  if (const aclError code = planned("aclmdlExecuteAsync")) return code;
  std::vector<void*> from, to;
  for (const auto* buffer : in->buffers) from.push_back(buffer->data);
  for (const auto* buffer : out->buffers) {
    if (!within(device, buffer->data, buffer->bytes)) return wrong(kInvalid, "a result outside the device");
    to.push_back(buffer->data);
  }
  for (const auto* buffer : in->buffers) {
    if (!within(device, buffer->data, buffer->bytes)) return wrong(kInvalid, "an input outside the device");
  }
  stream.emplace_back([=] {
    for (size_t i = 0; i < to.size(); ++i) std::memset(to[i], kPoison, models[id].out[i].bytes);
    return run_model(id, from.data(), to.data()) == 0 ? 0 : wrong(507011, "onnxruntime failed");
  });
  return 0;
}
}
