#include "graphs.h"

#include <algorithm>

#include "error.h"

namespace specc {
namespace {

constexpr int kMost = 64;  // inputs or outputs of a graph

specc_executor executor = nullptr;
void* executor_user = nullptr;

Status check_value(const specc_graph& graph, int32_t index, const Tensor* given) {
  const specc_graph_value& wanted = graph.in[index];
  const bool fits = given->dtype == wanted.dtype && given->ndim == wanted.ndim &&
                    std::equal(given->sizes, given->sizes + given->ndim, wanted.shape);
  if (fits && given->is_contiguous()) return kOk;
  return fail("%s: input %d is not what the graph takes", graph.name, index);
}

specc_graph_data data_of(const Tensor* tensor) {
  const size_t element = dtype_size(tensor->dtype);
  return {tensor->storage->data + static_cast<size_t>(tensor->offset) * element,
          static_cast<size_t>(tensor->numel()) * element};
}

Status run(const specc_graph& graph, Tensor** in, Tensor** out) {
  specc_graph_data from[kMost], to[kMost];
  for (int32_t i = 0; i < graph.n_in; i++) {
    if (check_value(graph, i, in[i]) != kOk) return 1;
    from[i] = data_of(in[i]);
  }
  for (int32_t i = 0; i < graph.n_out; i++) {
    out[i] = new_empty(graph.out[i].dtype, graph.out[i].ndim, graph.out[i].shape);
    if (out[i] == nullptr) return 1;
    to[i] = data_of(out[i]);
  }
  char text[512] = "";
  if (executor(executor_user, graph.name, from, to, text, sizeof text) == 0) return kOk;
  return fail("%s: %.500s", graph.name, text);
}

}  // namespace

int32_t run_graph(int32_t index, Tensor** in, int32_t n_in, Tensor** out, int32_t n_out) {
  const specc_graph& graph = specc_graphs[index];
  if (executor == nullptr) {
    return fail("%s: nobody runs the graphs of this artifact; open it with specc's Python, where onnxruntime is",
                graph.name);
  }
  if (n_in != graph.n_in || n_out != graph.n_out || n_in > kMost || n_out > kMost) {
    return fail("%s: takes %d inputs and %d outputs, not %d and %d", graph.name, graph.n_in, graph.n_out, n_in, n_out);
  }
  for (int32_t i = 0; i < n_out; i++) out[i] = nullptr;
  if (run(graph, in, out) != kOk) return 1;
  for (int32_t i = 0; i < n_in; i++) {
    release(in[i]);
    in[i] = nullptr;
  }
  return kOk;
}

}  // namespace specc

extern "C" __attribute__((visibility("default"))) void specc_model_executor(specc_executor run, void* user) {
  specc::executor_user = user;
  specc::executor = run;
}
