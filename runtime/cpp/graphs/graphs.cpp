#include "graphs.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "arenas.h"
#include "cache.h"
#include "recorded.h"

namespace specc {
namespace {

constexpr int kMost = 64;  // inputs or outputs of a graph

specc_executor executor = nullptr;
void* executor_user = nullptr;
GraphDevice* device = nullptr;  // closed by the engine, never by an exit: what it calls may be gone by then
Arenas<void*> arenas;

// Lazy results that are still on the device alone, each in the place of its graph and number.
struct Pending {
  int32_t graph = 0, output = 0;
  Storage* storage = nullptr;
};
std::vector<Pending> pending;

Status check_value(const specc_graph& graph, int32_t index, const Tensor* given) {
  const specc_graph_value& wanted = graph.in[index];
  const bool fits = given->dtype == wanted.dtype && given->ndim == wanted.ndim &&
                    std::equal(given->sizes, given->sizes + given->ndim, wanted.shape);
  if (fits && given->is_contiguous()) return kOk;
  return fail("%s: input %d is not what the graph takes", graph.name, index);
}

specc_graph_data data_of(const Tensor* tensor) {
  return {tensor->begin(), static_cast<size_t>(tensor->numel()) * dtype_size(tensor->dtype)};
}

Status run_by_host(const specc_graph& graph, const specc_graph_data* from, const specc_graph_data* to) {
  char text[512] = "";
  if (executor(executor_user, graph.name, from, to, text, sizeof text) == 0) return kOk;
  return fail("%s: %.500s", graph.name, text);
}

// A tensor that stands for rows on the device. Nobody may read it but a commit.
Tensor* new_rows(const specc_graph_value& value, void* where) {
  int64_t strides[kMaxDims] = {};
  contiguous_strides(value.ndim, value.shape, strides);
  Tensor* tensor = new_borrowed(where, 0, value.dtype, value.ndim, value.shape, strides);
  if (tensor != nullptr) tensor->storage->device = where;
  return tensor;
}

Status fetch_pending(Storage* storage) {
  auto* place = static_cast<Pending*>(storage->device);
  place->storage = nullptr;
  storage->device = nullptr;
  storage->forget = nullptr;
  storage->fetch = nullptr;
  return recorded([&] { device->fetch(place->graph, place->output, storage->data); });
}

void forget_pending(void* place) { static_cast<Pending*>(place)->storage = nullptr; }

Pending& place_of(int32_t index, int32_t output) {
  return pending[static_cast<size_t>(index) * kMost + static_cast<size_t>(output)];
}

// The device writes these again: what somebody still holds is fetched first.
Status fetch_before(int32_t index) {
  for (int32_t i = 0; i < specc_graphs[index].n_out; i++) {
    Storage* held = place_of(index, i).storage;
    if (held != nullptr && fetch_pending(held) != kOk) return 1;
  }
  return kOk;
}

void leave_pending(int32_t index, int32_t output, Storage* storage) {
  Pending& place = place_of(index, output);
  place = {index, output, storage};
  storage->device = &place;
  storage->forget = forget_pending;
  storage->fetch = fetch_pending;
}

Status run(int32_t index, Tensor** in, Tensor** out) {
  const specc_graph& graph = specc_graphs[index];
  const bool on_device = device != nullptr;
  if (on_device && fetch_before(index) != kOk) return 1;
  specc_graph_data from[kMost], to[kMost];
  for (int32_t i = 0; i < graph.n_in; i++) {
    if (check_value(graph, i, in[i]) != kOk) return 1;
    from[i] = data_of(in[i]);
    if (!on_device || !graph.in[i].resident) continue;
    from[i].data = in[i]->storage->device;
    if (from[i].data == nullptr) return fail("%s: input %d is not on the device", graph.name, i);
  }
  for (int32_t i = 0; i < graph.n_out; i++) {
    to[i] = {nullptr, 0};
    if (on_device && graph.out[i].resident) continue;
    out[i] = new_empty(graph.out[i].dtype, graph.out[i].ndim, graph.out[i].shape);
    if (out[i] == nullptr) return 1;
    to[i] = data_of(out[i]);
  }
  if (!on_device) return run_by_host(graph, from, to);
  if (recorded([&] { device->run(index, from, to); }) != kOk) return 1;
  for (int32_t i = 0; i < graph.n_out; i++) {
    if (graph.out[i].lazy) leave_pending(index, i, out[i]->storage);
    if (!graph.out[i].resident) continue;
    out[i] = new_rows(graph.out[i], to[i].data);
    if (out[i] == nullptr) return 1;
  }
  return kOk;
}

void release_all(Tensor** in, int32_t n_in) {
  for (int32_t i = 0; i < n_in; i++) {
    release(in[i]);
    in[i] = nullptr;
  }
}

// One copy for each stretch of consecutive rows. (A last row that is repeated up to the graph's size is written again.)
Status commit_on_device(Tensor& state, const Tensor& x, const int64_t* rows, int64_t count) {
  const size_t width = static_cast<size_t>(state.sizes[2]) * dtype_size(state.dtype);
  auto* const to = static_cast<char*>(state.storage->device);
  const auto* const from = static_cast<const char*>(x.storage->device);
  int64_t written = 0;
  while (written < count) {
    int64_t next = written + 1;
    while (next < count && rows[next] == rows[next - 1] + 1) next++;
    const auto at = static_cast<size_t>(rows[written]) * width, bytes = static_cast<size_t>(next - written) * width;
    const Status status =
        recorded([&] { device->commit(to + at, from + static_cast<size_t>(written) * width, bytes); });
    if (status != kOk) return status;
    written = next;
    while (written < count && rows[written] == rows[written - 1]) written++;
  }
  return kOk;
}

Status commit_here(Tensor& state, const Tensor& x, const Tensor& rows, int64_t count) {
  int64_t sizes[] = {count, x.sizes[1], x.sizes[2]};
  Tensor* first = new_view(&x, x.dtype, x.ndim, sizes, x.strides, x.offset);
  Tensor* places = new_view(&rows, rows.dtype, 1, sizes, rows.strides, rows.offset);
  const Status status = first != nullptr && places != nullptr ? cache_write(state, *first, *places) : 1;
  release(first);
  release(places);
  return status;
}

Status commit(Tensor& state, const Tensor& x, const Tensor& rows, const Tensor* accepted) {
  if (state.ndim != 3 || x.ndim != 3 || state.sizes[0] != 1 || x.sizes[1] != 1 || x.sizes[2] != state.sizes[2] ||
      x.dtype != state.dtype || !state.is_contiguous() || !rows.is_contiguous()) {
    return fail("specc.commit: x [T, 1, W] must fit the state [1, S, W]");
  }
  int64_t count = x.sizes[0];
  if (check_rows("specc.commit", rows, count, state.sizes[1]) != kOk) return 1;
  if (accepted != nullptr) {
    if (accepted->dtype != SPECC_I64 || accepted->numel() != 1) return fail("specc.commit: accepted must be i64 [1]");
    count = std::min(count, *accepted->data<int64_t>() + 1);
  }
  if (count <= 0) return kOk;
  const bool on_device = state.storage->device != nullptr;
  if (on_device != (x.storage->device != nullptr)) return fail("specc.commit: state and rows are not in one place");
  if (on_device) return commit_on_device(state, x, rows.data<int64_t>(), count);
  return commit_here(state, x, rows, count);
}

// Where nothing is chosen, OMs decide: an artifact that has them never runs elsewhere because something is missing.
void choose_device(const char* directory) {
  const char* set = std::getenv("SPECC_EXECUTOR");
  const std::string chosen = set != nullptr ? set : "";
  if (!chosen.empty() && chosen != "onnxruntime" && chosen != "acl") {
    throw Error(Code::Option, "there is no such executor of graphs")
        .where("SPECC_EXECUTOR")
        .expected("acl or onnxruntime")
        .found(chosen)
        .cure("correct or unset it");
  }
  if (chosen == "onnxruntime") return;
  if (specc_open_device != nullptr) {
    pending.resize(static_cast<size_t>(specc_graph_count) * kMost);
    device = specc_open_device(directory).release();
  }
  if (device == nullptr && chosen == "acl") {
    throw Error(Code::BadModel, "the artifact has no OMs that an NPU could run")
        .where(directory)
        .cure("run its build_om.sh where CANN is; if it has none, compile with --device ascend:SOC");
  }
}

int32_t open_device(const char* directory) {
  clear_error();
  return recorded([&] { choose_device(directory); });
}

int32_t place(const char* name, Tensor* state) {
  clear_error();
  if (device == nullptr) return kOk;
  for (const char* const* known = specc_resident_states; *known != nullptr; known++) {
    if (std::strcmp(*known, name) != 0) continue;
    return recorded([&] {
      const size_t bytes = static_cast<size_t>(state->numel()) * dtype_size(state->dtype);
      const auto [arena, offset] = arenas.find(state->storage->data, bytes, name);
      state->storage->device = static_cast<char*>(arena) + offset;
      state->storage->data = nullptr;  // for nobody to read
    });
  }
  return kOk;
}

void close_device() {
  delete device;
  device = nullptr;
}

constexpr specc_device kDevice = {open_device, place, close_device};

}  // namespace

int32_t run_graph(int32_t index, Tensor** in, int32_t n_in, Tensor** out, int32_t n_out) {
  const specc_graph& graph = specc_graphs[index];
  if (executor == nullptr && device == nullptr) {
    return fail("%s: nobody runs the graphs of this artifact; open it with specc's Python, where onnxruntime is%s",
                graph.name, *specc_soc != '\0' ? ", or run its build_om.sh where CANN is" : "");
  }
  if (n_in != graph.n_in || n_out != graph.n_out || n_in > kMost || n_out > kMost) {
    return fail("%s: takes %d inputs and %d outputs, not %d and %d", graph.name, graph.n_in, graph.n_out, n_in, n_out);
  }
  for (int32_t i = 0; i < n_out; i++) out[i] = nullptr;
  if (run(index, in, out) != kOk) return 1;
  release_all(in, n_in);
  return kOk;
}

int32_t run_commit(Tensor** in, int32_t n_in, Tensor**, int32_t n_out) {
  if (n_in < 3 || n_in > 4 || n_out != 0) return fail("specc.commit takes 3 or 4 inputs, not %d", n_in);
  if (commit(*in[0], *in[1], *in[2], n_in == 4 ? in[3] : nullptr) != kOk) return 1;
  release_all(in, n_in);
  return kOk;
}

}  // namespace specc

extern "C" {

__attribute__((visibility("default"))) void specc_model_executor(specc_executor run, void* user) {
  specc::executor_user = user;
  specc::executor = run;
}

__attribute__((visibility("default"))) int32_t specc_model_runs_graphs(void) { return specc::device != nullptr; }

__attribute__((visibility("default"))) const specc_device* specc_model_device(void) { return &specc::kDevice; }

__attribute__((visibility("default"))) int32_t specc_model_arena(const void* memory, int64_t bytes) {
  specc::clear_error();
  if (specc::device == nullptr) return specc::kOk;
  const auto size = static_cast<size_t>(bytes);
  return specc::recorded([&] { specc::arenas.begin(memory, size, [&] { return specc::device->take_arena(size); }); });
}

__attribute__((visibility("default"))) void specc_model_arena_end(const void* memory) {
  if (void* const arena = specc::arenas.end(memory)) specc::device->give_arena(arena);
}
}
