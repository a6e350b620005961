// The graphs of an artifact, whole models of fixed shapes, as the generated graphs table lists them; and who runs them:
// a function of the host program (onnxruntime, by way of Python), or a device (an NPU, by way of ACL).
#pragma once
#include <cstddef>
#include <cstdint>

#include "device.h"
#include "tensor.h"

struct specc_graph_value {
  const char* name;  // of an input, as the model names it
  int32_t dtype, ndim;
  int64_t shape[specc::kMaxDims];
  bool resident;  // a device keeps it: state that is read, or new rows of it that only a commit takes
  bool lazy;      // a device hands it out when somebody looks: logits
};

struct specc_graph {
  const char* name;
  int32_t n_in, n_out;
  const specc_graph_value* in;
  const specc_graph_value* out;
};

extern const specc_graph specc_graphs[];
extern const int specc_graph_count;
extern const char* const specc_resident_states[];  // names; the last is null
extern const char specc_soc[];                     // the chip that OMs are compiled for; "" where there is no device
extern specc::OpenDevice* const specc_open_device;  // null where there is no device

// Runs the graph `name` from `in`, which it only reads, to `out`, in the table's order. 0 on success; else a text of less
// than `room` bytes in `error`. Must not keep the pointers.
typedef int32_t (*specc_executor)(void* user, const char* name, const specc_graph_data* in, const specc_graph_data* out,
                                  char* error, size_t room);

namespace specc {

// What a generated leaf calls; inputs are released on success, as compiled leaves do.
int32_t run_graph(int32_t index, Tensor** in, int32_t n_in, Tensor** out, int32_t n_out);

// The entry specc.commit: state [1, S, W], new rows [T, 1, W], their places in the state i64 [T], and, after a round, how
// many drafts were accepted, i64 [1]: rows beyond one more than that are not copied. -1, a NaN, copies nothing.
int32_t run_commit(Tensor** in, int32_t n_in, Tensor** out, int32_t n_out);

}  // namespace specc

extern "C" {
// From now on `run` runs the graphs, unless a device does. Null takes it away.
__attribute__((visibility("default"))) void specc_model_executor(specc_executor run, void* user);
// Whether a device has been opened that runs them: then no executor is needed.
__attribute__((visibility("default"))) int32_t specc_model_runs_graphs(void);
}
