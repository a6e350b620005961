// One graph as CANN compiled it, with all that it needs to run again and again: buffers, datasets, pinned memory.
#pragma once
#include <string>
#include <vector>

#include "acl/memory.h"
#include "acl/npu.h"
#include "graphs.h"

namespace specc {

// A file of weights that lies on the NPU once, whichever OMs refer to it.
struct WeightFile {
  std::string name;  // without folders
  DevicePiece data;
};

class Om {
 public:
  // Loads the OM at `path` and checks that it takes and gives what the table says: names, sizes and types.
  // `workspace` is lent by all OMs to each other, for they run one after the other. Throws Error(BadModel, Memory).
  Om(const Npu& npu, DeviceMemory& memory, const specc_graph& graph, const std::string& path,
     const DevicePiece& workspace, const std::vector<WeightFile>& weights);
  ~Om();
  Om(const Om&) = delete;
  Om& operator=(const Om&) = delete;

  // As GraphDevice::run and fetch.
  void run(const specc_graph_data* in, specc_graph_data* out);
  void fetch(size_t output, void* to);

 private:
  struct Slot {
    size_t at = 0, bytes = 0;  // place in `buffers_`; as the device counts
    aclDataBuffer* buffer = nullptr;
    void* bound = nullptr;  // what the buffer names now
  };

  void load(const std::string& path, const DevicePiece& workspace, const std::vector<WeightFile>& weights);
  void check_inputs();
  void check_outputs();
  void make_buffers(DeviceMemory& memory);
  void bind(Slot& slot, aclmdlDataset* dataset, void* data);
  void close() noexcept;
  [[noreturn]] void refuse(const std::string& what, const std::string& expected, const std::string& found) const;

  const Npu& npu_;
  const specc_graph& graph_;
  const std::string path_;
  uint32_t id_ = 0;
  bool loaded_ = false;
  aclmdlDesc* desc_ = nullptr;
  aclmdlDataset *in_ = nullptr, *out_ = nullptr;
  std::vector<Slot> inputs_, outputs_;  // in the table's order
  std::vector<size_t> order_;           // of the OM's inputs: their numbers in the table
  // What the host gives, what it takes, what it may take, and then what stays: so that each direction is one copy.
  DevicePiece buffers_;
  char* pinned_ = nullptr;
  size_t up_ = 0, down_ = 0;  // bytes of the first two parts
  bool unfinished_ = false;   // nobody has waited since the last run
};

}  // namespace specc
