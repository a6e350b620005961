#include "model_library.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "error.h"

namespace specc {
namespace {

constexpr int32_t kMaxEntries = 1 << 20;
constexpr char kFile[] = "model.so";

struct Registry {
  std::mutex mutex;
  std::map<FileIdentity, std::weak_ptr<ModelLibrary>> open;
};

Registry& registry() {
  static Registry* instance = new Registry;  // never destroyed: a session may be closed by a static destructor
  return *instance;
}

void run_on_pool(void* pool, int32_t parts, void (*body)(void*, int32_t), void* arg) {
  static_cast<Pool*>(pool)->parallel(parts, body, arg);
}

// Off unless the environment says so: an app that embeds us has threads of its own to place.
bool pinning_asked_for() {
  const char* value = std::getenv("SPECC_PIN");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

Error refused(const std::string& path, const char* what) {
  return Error(Code::ModelRefused, what).where(path).cure("compile the artifact again with this version of specc");
}

}  // namespace

std::shared_ptr<ModelLibrary> ModelLibrary::open(const Source& source, const std::string& isa, int32_t threads) {
  const std::string path = source.name(kFile);
  Registry& known = registry();
  const std::lock_guard<std::mutex> guard(known.mutex);
  SharedObject object = source.code(kFile);
  for (const auto& [identity, entry] : known.open) {
    const auto shared = entry.lock();
    if (shared == nullptr || !identity.same_place(object.identity())) continue;
    if (identity != object.identity()) {
      // What is mapped has changed under our feet, and the dynamic linker would call it the same library.
      throw refused(path, "the model library was overwritten while it was in use")
          .cure("free every artifact loaded from it first, and replace files by renaming");
    }
    if (shared->api_->isa != isa) throw refused(path, "the model library and the manifest name different ISAs");
    return shared;
  }
  object.load();
  const FileIdentity identity = object.identity();
  std::shared_ptr<ModelLibrary> library(new ModelLibrary(std::move(object), source, isa, threads));
  known.open[identity] = library;
  return library;
}

ModelLibrary::ModelLibrary(SharedObject object, const Source& source, const std::string& isa, int32_t threads)
    : object_(std::move(object)), pool_(threads, pinning_asked_for()) {
  const std::string path = source.name(kFile);
  using EntryPoint = const specc_model* (*)();
  const auto entry_point = reinterpret_cast<EntryPoint>(object_.symbol("specc_model_entry"));
  if (entry_point == nullptr) throw refused(path, "the model library exports no specc_model_entry");
  api_ = entry_point();
  if (api_ == nullptr) throw refused(path, "the model library has no table");
  if (api_->abi != SPECC_MODEL_ABI) {
    throw refused(path, "the model library speaks another ABI")
        .expected(std::to_string(SPECC_MODEL_ABI))
        .found(std::to_string(api_->abi));
  }
  if (api_->isa == nullptr || api_->isa != isa) {
    throw refused(path, "the model library and the manifest name different ISAs")
        .expected(isa)
        .found(api_->isa != nullptr ? api_->isa : "none");
  }
  if (!api_->attach || !api_->view || !api_->retain || !api_->release || !api_->data || !api_->info || !api_->run ||
      !api_->error || api_->entry_count < 0 || api_->entry_count > kMaxEntries) {
    throw refused(path, "the model library's table is incomplete");
  }
  for (int32_t i = 0; i < api_->entry_count; ++i) entries_.emplace(api_->entry_names[i], i);
  host_ = {run_on_pool, &pool_, pool_.threads()};
  if (api_->attach(&host_) != 0) throw refused(path, "the model library could not start").found(api_->error());
  using DeviceEntryPoint = const specc_device* (*)();
  if (const auto entry = reinterpret_cast<DeviceEntryPoint>(object_.symbol("specc_model_device"))) device_ = entry();
  weight_ = reinterpret_cast<decltype(weight_)>(object_.symbol("specc_model_weight"));
  arena_ = reinterpret_cast<decltype(arena_)>(object_.symbol("specc_model_arena"));
  arena_end_ = reinterpret_cast<decltype(arena_end_)>(object_.symbol("specc_model_arena_end"));
  if (device_ == nullptr) return;
  if (source.directory().empty()) {
    throw Error(Code::ModelRefused, "an artifact for a device is loaded from a folder")
        .where(path)
        .cure("call specc_artifact_load with its path");
  }
  if (device_->open(source.directory().c_str()) != 0) throw refused(path, "the device could not start").told(api_->error());
}

ModelLibrary::~ModelLibrary() {
  if (device_ != nullptr) device_->close();
  Registry& known = registry();
  const std::lock_guard<std::mutex> guard(known.mutex);
  // Someone may have opened the same file since our count fell to zero; then the place is theirs.
  const auto found = known.open.find(object_.identity());
  if (found != known.open.end() && found->second.expired()) known.open.erase(found);
}

void ModelLibrary::begin_arena(const void* memory, int64_t bytes) const {
  if (arena_ == nullptr || arena_(memory, bytes) == 0) return;
  throw Error(Code::Memory, "the device has no room for a session's state")
      .expected(std::to_string(bytes) + " bytes")
      .told(api_->error());
}

void ModelLibrary::place(const std::string& name, specc_tensor* state) const {
  if (device_ == nullptr || device_->place(name.c_str(), state) == 0) return;
  throw Error(Code::Memory, "the device has no room for a session's state").where(name).told(api_->error());
}

std::optional<int32_t> ModelLibrary::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

}  // namespace specc
