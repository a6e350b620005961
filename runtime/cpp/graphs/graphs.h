// The graphs of an artifact whose leaves a host program runs, as the generated graphs table lists them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tensor.h"

struct specc_graph_value {
  int32_t dtype, ndim;
  int64_t shape[specc::kMaxDims];
};

struct specc_graph {
  const char* name;
  int32_t n_in, n_out;
  const specc_graph_value* in;
  const specc_graph_value* out;
};

extern const specc_graph specc_graphs[];
extern const int specc_graph_count;

// A tensor of the engine's, contiguous; its type is in the table.
struct specc_graph_data {
  void* data;
  size_t bytes;
};

// Runs the graph `name` from `in`, which it only reads, to `out`, in the table's order. 0 on success; else a text of less
// than `room` bytes in `error`. Must not keep the pointers.
typedef int32_t (*specc_executor)(void* user, const char* name, const specc_graph_data* in, const specc_graph_data* out,
                                  char* error, size_t room);

namespace specc {

// What a generated leaf calls; inputs are released on success, as compiled leaves do.
int32_t run_graph(int32_t index, Tensor** in, int32_t n_in, Tensor** out, int32_t n_out);

}  // namespace specc

// The second symbol of such a library: from now on `run` runs its graphs. Null takes it away.
extern "C" __attribute__((visibility("default"))) void specc_model_executor(specc_executor run, void* user);
