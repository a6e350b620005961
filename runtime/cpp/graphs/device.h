// The seam to a device that runs graphs. One is behind it: ACL, in acl/.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

// A tensor, contiguous; its type is in the graphs table.
struct specc_graph_data {
  void* data;
  size_t bytes;
};

namespace specc {

// All calls come one at a time, from any thread. Failures are Errors of core/error.h.
class GraphDevice {
 public:
  virtual ~GraphDevice() = default;

  // One piece of the device's memory for all that a session holds: zeros, for graphs read rows that nobody wrote, and a
  // mask is added to what comes of them, which hides numbers but no NaN.
  virtual void* take_arena(size_t bytes) = 0;
  virtual void give_arena(void* arena) noexcept = 0;

  // Runs graph `index` of the table. Values that the table calls resident are the device's memory: `in` says where
  // states are, and `out` is told where new rows are, until this graph runs again. Others are the host's; lazy results are
  // not written.
  virtual void run(int32_t index, const specc_graph_data* in, specc_graph_data* out) = 0;

  // Copies a lazy result of the graph's last run to the host.
  virtual void fetch(int32_t index, int32_t output, void* to) = 0;

  // Copies new rows into a state: after what was run so far, and before what is run later.
  virtual void commit(void* state, const void* rows, size_t bytes) = 0;
};

// Opens the device and loads the artifact's models; null if the artifact has none for it.
using OpenDevice = std::unique_ptr<GraphDevice>(const std::string& directory);

}  // namespace specc
