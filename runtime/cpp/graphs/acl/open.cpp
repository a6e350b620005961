// An artifact's OMs on an NPU, by way of CANN's ACL.
#include "acl/open.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "acl/memory.h"
#include "acl/npu.h"
#include "acl/om.h"
#include "core/error.h"

namespace specc {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunk = size_t{8} << 20;  // of a file on its way

// A number from the environment; 0 if it is not set. Throws Error(Option).
size_t number(const char* name, size_t most) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (*end == '\0' && *text != '-' && value <= most) return static_cast<size_t>(value);
  throw Error(Code::Option, "a setting of the environment is no such number")
      .where(name)
      .expected("0 to " + std::to_string(most))
      .found(text)
      .cure("correct or unset it");
}

// DIRECTORY/om/NAME.om, or NAME_SYSTEM_ARCHITECTURE.om, as atc names what has code for the host in it; else "".
std::string om_of(const fs::path& folder, const std::string& name) {
  std::error_code ignored;
  const fs::path plain = folder / (name + ".om");
  if (fs::is_regular_file(plain, ignored)) return plain.string();
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string file = entry.path().filename().string();
    const bool named = file.size() > name.size() + 4 && file.compare(0, name.size() + 1, name + "_") == 0 &&
                       file.compare(file.size() - 3, 3, ".om") == 0;
    if (named && file.find('.', name.size()) == file.size() - 3) return entry.path().string();
  }
  return "";
}

// The chip that the OMs in `folder` are for: whoever made them wrote it beside them.
std::string chip_of(const fs::path& folder) {
  std::ifstream file(folder / "soc");
  std::string name;
  return std::getline(file, name) && !name.empty() ? name : specc_soc;
}

class AclDevice final : public GraphDevice {
 public:
  AclDevice(const fs::path& folder, const std::vector<std::string>& files)
      : npu_(static_cast<int32_t>(number("SPECC_NPU_DEVICE", 1023)), chip_of(folder).c_str()),
        memory_(npu_.acl(), number("SPECC_NPU_POOL", size_t{1} << 24) << 20) {
    load_weights(folder / "weight");
    size_t largest = 0;
    for (const std::string& file : files) {
      size_t work = 0, weights = 0;
      npu_.check(npu_.acl().aclmdlQuerySize(file.c_str(), &work, &weights), "aclmdlQuerySize", file.c_str());
      largest = std::max(largest, work);
    }
    if (largest > 0) workspace_ = DevicePiece(memory_, largest, "the workspace of the OMs");
    for (int32_t i = 0; i < specc_graph_count; ++i) {
      oms_.push_back(std::make_unique<Om>(npu_, memory_, specc_graphs[i], files[static_cast<size_t>(i)], workspace_,
                                          weights_));
    }
  }

  ~AclDevice() override {
    try {
      npu_.enter();
      npu_.wait("the end");
    } catch (const Error&) {  // closed all the same
    }
  }

  // (Buffers in it begin on 512 bytes, with as many free behind each: ir/arena.py has the reasons.)
  void* take_arena(size_t bytes) override {
    npu_.enter();
    void* arena = memory_.take(bytes, "the state of a session");
    try {
      npu_.check(npu_.acl().aclrtMemset(arena, bytes, 0, bytes), "aclrtMemset", "the state of a session");
    } catch (...) {
      memory_.give(arena);
      throw;
    }
    return arena;
  }

  void give_arena(void* arena) noexcept override {
    try {
      npu_.enter();
      npu_.wait("the end of a session");  // it may be in use
    } catch (const Error&) {
    }
    memory_.give(arena);
  }

  void run(int32_t index, const specc_graph_data* in, specc_graph_data* out) override {
    npu_.enter();
    oms_[static_cast<size_t>(index)]->run(in, out);
  }

  void fetch(int32_t index, int32_t output, void* to) override {
    npu_.enter();
    oms_[static_cast<size_t>(index)]->fetch(static_cast<size_t>(output), to);
  }

  void commit(void* state, const void* rows, size_t bytes) override {
    npu_.enter();
    npu_.check(npu_.acl().aclrtMemcpyAsync(state, bytes, rows, bytes, ACL_MEMCPY_DEVICE_TO_DEVICE, npu_.stream()),
               "aclrtMemcpyAsync", "new rows of a cache");
  }

 private:
  // What OMs share. Without the call for that, each loads its own.
  void load_weights(const fs::path& folder) {
    std::error_code ignored;
    if (npu_.acl().aclmdlSetExternalWeightAddress == nullptr) return;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.is_regular_file()) load_file(entry.path());
    }
  }

  void load_file(const fs::path& path) {
    const std::string name = path.string();
    const size_t bytes = static_cast<size_t>(fs::file_size(path));
    if (bytes == 0) return;
    weights_.push_back({path.filename().string(), DevicePiece(memory_, (bytes + 31) / 32 * 32, name.c_str())});
    std::ifstream file(path, std::ios::binary);
    std::vector<char> chunk(std::min(bytes, kChunk));
    for (size_t at = 0; at < bytes;) {
      const size_t part = std::min(chunk.size(), bytes - at);
      if (!file.read(chunk.data(), static_cast<std::streamsize>(part))) {
        throw Error(Code::File, "a file of the artifact cannot be read").where(name).cure("copy the artifact again");
      }
      npu_.check(npu_.acl().aclrtMemcpy(weights_.back().data.data() + at, part, chunk.data(), part,
                                        ACL_MEMCPY_HOST_TO_DEVICE),
                 "aclrtMemcpy", name.c_str());
      at += part;
    }
  }

  Npu npu_;  // first: the others live on it
  DeviceMemory memory_;
  std::vector<WeightFile> weights_;
  DevicePiece workspace_;
  std::vector<std::unique_ptr<Om>> oms_;
};

}  // namespace

std::unique_ptr<GraphDevice> open_acl(const std::string& directory) {
  const fs::path folder = fs::path(directory) / "om";
  std::vector<std::string> files;
  std::string missing;
  for (int32_t i = 0; i < specc_graph_count; ++i) {
    files.push_back(om_of(folder, specc_graphs[i].name));
    if (files.back().empty()) missing += (missing.empty() ? "" : ", ") + std::string(specc_graphs[i].name);
  }
  const auto found = static_cast<int32_t>(std::count_if(files.begin(), files.end(), [](auto& f) { return !f.empty(); }));
  if (found == 0) return nullptr;  // ONNX alone: not compiled yet
  if (found != specc_graph_count) {
    throw Error(Code::BadModel, "some of the artifact's graphs have no OM")
        .where(folder.string())
        .found("none of " + missing)
        .cure("run the artifact's build_om.sh, which goes on where it stopped");
  }
  return std::make_unique<AclDevice>(folder, files);
}

}  // namespace specc
