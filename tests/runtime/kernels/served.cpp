// A model library of another processor, driven over pipes: what driver.py's Remote asks of it, run under an emulator.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "specc_model.h"

extern "C" void spawn_parts(void*, int32_t parts, void (*body)(void*, int32_t), void* arg);
extern "C" double largest_error(int function, uint32_t stride);

namespace {

void take(void* into, size_t bytes) {
  if (bytes && std::fread(into, 1, bytes, stdin) != bytes) std::exit(0);
}
template <class T>
T take() {
  T value;
  take(&value, sizeof value);
  return value;
}
void give(const void* data, size_t bytes) { std::fwrite(data, 1, bytes, stdout); }
template <class T>
void give(T value) {
  give(&value, sizeof value);
}
void give_text(const char* text) {
  give<int64_t>(static_cast<int64_t>(std::strlen(text)));
  give(text, std::strlen(text));
}

int64_t bytes_of(int32_t dtype) {
  switch (dtype) {
    case SPECC_I64:
    case SPECC_F64: return 8;
    case SPECC_F32:
    case SPECC_I32: return 4;
    case SPECC_F16:
    case SPECC_BF16: return 2;
    default: return 1;
  }
}

struct Input {
  int32_t dtype, dimensions;
  std::vector<int64_t> shape;
  std::vector<char> data;
};

void run(const specc_model& model) {
  const int32_t entry = take<int32_t>(), outputs = take<int32_t>();
  std::vector<int64_t> attrs(static_cast<size_t>(take<int32_t>()));
  take(attrs.data(), attrs.size() * sizeof(int64_t));
  std::vector<Input> inputs(static_cast<size_t>(take<int32_t>()));
  std::vector<specc_tensor*> in, out(static_cast<size_t>(outputs) + 1);
  for (Input& input : inputs) {
    input.dtype = take<int32_t>();
    input.dimensions = take<int32_t>();
    input.shape.resize(static_cast<size_t>(input.dimensions) + 1);
    take(input.shape.data(), static_cast<size_t>(input.dimensions) * sizeof(int64_t));
    input.data.resize(static_cast<size_t>(take<int64_t>()) + 64);
    take(input.data.data(), input.data.size() - 64);
    in.push_back(model.view(input.data.data(), input.dtype, input.dimensions, input.shape.data()));
  }
  const int32_t status = model.run(entry, in.data(), static_cast<int32_t>(in.size()), out.data(), outputs, attrs.data(),
                                   static_cast<int32_t>(attrs.size()));
  give(status);
  if (status != 0) return give_text(model.error());
  for (int32_t i = 0; i < outputs; i++) {
    specc_tensor* tensor = out[static_cast<size_t>(i)];
    int32_t dtype, dimensions;
    const int64_t *shape, *stride;
    model.info(tensor, &dtype, &dimensions, &shape, &stride);
    int64_t span = 1;
    for (int32_t d = 0; d < dimensions; d++) span = shape[d] == 0 || span == 0 ? 0 : span + (shape[d] - 1) * stride[d];
    const int64_t width = bytes_of(dtype);
    give(dtype), give(dimensions);
    give(shape, static_cast<size_t>(dimensions) * sizeof(int64_t));
    give(stride, static_cast<size_t>(dimensions) * sizeof(int64_t));
    give(span * width);
    give(model.data(tensor), static_cast<size_t>(span * width));
    model.release(tensor);
  }
  for (const Input& input : inputs) give(input.data.data(), input.data.size() - 64);  // caches are written in place
}

}  // namespace

int main() {
  const specc_model& model = *specc_model_entry();
  specc_host host = {nullptr, nullptr, 1};
  model.attach(&host);
  give<uint32_t>(model.abi);
  give_text(model.isa);
  give<int32_t>(model.entry_count);
  for (int32_t i = 0; i < model.entry_count; i++) give_text(model.entry_names[i]);
  for (;;) {
    std::fflush(stdout);
    switch (take<int32_t>()) {
      case 0:
        host.threads = take<int32_t>();
        host.parallel = host.threads > 1 ? spawn_parts : nullptr;
        model.attach(&host);
        break;
      case 1: run(model); break;
      default: {
        const int32_t function = take<int32_t>();
        give(largest_error(function, take<uint32_t>()));
      }
    }
  }
}
