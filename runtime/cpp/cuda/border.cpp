#include "border.h"

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "arenas.h"
#include "gpu.h"
#include "recorded.h"

namespace specc {
namespace {

constexpr int kMost = 64;  // values that go up or down at once

Gpu* gpu = nullptr;  // closed by the engine, never by an exit: the driver may be gone by then

Block* block_of(const Storage* storage) { return static_cast<Block*>(storage->device); }

void forget_block(void* block) { gpu->give(static_cast<Block*>(block)); }

Status fetch_block(Storage* storage) {
  return recorded([&] {
    Block* block = block_of(storage);
    block->host = static_cast<char*>(std::malloc(block->bytes > 0 ? block->bytes : 1));
    if (block->host == nullptr) throw std::bad_alloc();
    void* to = block->host;
    gpu->enter();
    gpu->fetch(&to, &block->at, &block->bytes, 1);
    storage->data = block->host;
    storage->fetch = nullptr;
  });
}

// A tensor over `block`, which it owns from now on.
Tensor* over(Block* block, int32_t dtype, int32_t ndim, const int64_t* sizes, const int64_t* strides) {
  Tensor* tensor = new_borrowed(nullptr, 0, dtype, ndim, sizes, strides);
  if (tensor == nullptr) {
    gpu->give(block);
    return nullptr;
  }
  tensor->storage->bytes = block->bytes;
  tensor->storage->device = block;
  tensor->storage->forget = forget_block;
  tensor->storage->fetch = fetch_block;
  return tensor;
}

size_t bytes_of(const Tensor* tensor) { return static_cast<size_t>(tensor->numel()) * dtype_size(tensor->dtype); }

CUdeviceptr address(const Tensor* tensor) {
  return block_of(tensor->storage)->at + static_cast<CUdeviceptr>(tensor->offset) * dtype_size(tensor->dtype);
}

void release_all(Tensor** in, int32_t n_in) {
  for (int32_t i = 0; i < n_in; i++) {
    release(in[i]);
    in[i] = nullptr;
  }
}

int ordinal() {
  const char* text = std::getenv("SPECC_CUDA_DEVICE");
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (*end == '\0' && value >= 0 && value < 1024) return static_cast<int>(value);
  throw Error(Code::Option, "a setting of the environment is no such number")
      .where("SPECC_CUDA_DEVICE")
      .expected("0 to 1023")
      .found(text)
      .cure("correct or unset it");
}

int32_t open_gpu(const char*) {
  clear_error();
  return recorded([&] { gpu = new Gpu(ordinal(), specc_cuda_arch); });
}

Arenas<Block*> arenas;

void forget_part(void* part) { delete static_cast<Block*>(part); }

// Every state lies on the GPU. Nobody reads it here: its `fetch` stays empty.
int32_t place(const char* name, Tensor* state) {
  clear_error();
  return recorded([&] {
    const size_t bytes = bytes_of(state);
    const auto [block, offset] = arenas.find(state->storage->data, bytes, name);
    state->storage->device = new Block{block->at + offset, bytes, bytes, nullptr};
    state->storage->forget = forget_part;
    state->storage->data = nullptr;  // for nobody to read
  });
}

void close_gpu() {
  delete gpu;
  gpu = nullptr;
}

constexpr specc_device kDevice = {open_gpu, place, close_gpu};

Status upload(Tensor** in, int32_t count, Tensor** out) {
  const void* from[kMost];
  size_t bytes[kMost], offsets[kMost], total = 0;
  for (int32_t i = 0; i < count; i++) {
    if (in[i]->storage->device != nullptr || !in[i]->is_contiguous()) {
      return fail("cuda.upload: value %d is not contiguous memory of the host", i);
    }
    from[i] = in[i]->storage->data + static_cast<size_t>(in[i]->offset) * dtype_size(in[i]->dtype);
    bytes[i] = bytes_of(in[i]);
    offsets[i] = total;
    total += (bytes[i] + 255) / 256 * 256;
  }
  Block* block = nullptr;
  const Status status = recorded([&] {
    gpu->enter();
    block = gpu->take(total);
    gpu->upload(block->at, from, bytes, offsets, count, total);
  });
  if (status != kOk) {
    if (block != nullptr) gpu->give(block);
    return status;
  }
  const int64_t whole = static_cast<int64_t>(total), one = 1;
  Tensor* all = over(block, SPECC_U8, 1, &whole, &one);
  if (all == nullptr) return 1;
  bool complete = true;
  for (int32_t i = 0; i < count; i++) {
    out[i] = new_view(all, in[i]->dtype, in[i]->ndim, in[i]->sizes, in[i]->strides,
                      static_cast<int64_t>(offsets[i] / dtype_size(in[i]->dtype)));
    complete = complete && out[i] != nullptr;
  }
  release(all);
  return complete ? kOk : 1;
}

Status fetch_here(Tensor** in, int32_t count, Tensor** out) {
  CUdeviceptr from[kMost];
  void* to[kMost];
  size_t bytes[kMost];
  for (int32_t i = 0; i < count; i++) {
    if (in[i]->storage->device == nullptr || !in[i]->is_contiguous()) {
      return fail("cuda.fetch: value %d is not contiguous memory of the GPU", i);
    }
    out[i] = new_empty(in[i]->dtype, in[i]->ndim, in[i]->sizes);
    if (out[i] == nullptr) return 1;
    from[i] = address(in[i]);
    to[i] = out[i]->storage->data;
    bytes[i] = bytes_of(in[i]);
  }
  return recorded([&] {
    gpu->enter();
    gpu->fetch(to, from, bytes, count);
  });
}

using Carry = Status(Tensor** in, int32_t count, Tensor** out);

int32_t carried(const char* name, Carry* carry, Tensor** in, int32_t n_in, Tensor** out, int32_t n_out) {
  if (n_in != n_out || n_in < 1 || n_in > kMost) return fail("%s takes as many as it gives, at most %d", name, kMost);
  for (int32_t i = 0; i < n_out; i++) out[i] = nullptr;
  if (carry(in, n_in, out) != kOk) {
    release_all(out, n_out);
    return 1;
  }
  release_all(in, n_in);
  return kOk;
}

}  // namespace

int32_t run_upload(Tensor** in, int32_t n_in, Tensor** out, int32_t n_out) {
  return carried("cuda.upload", upload, in, n_in, out, n_out);
}

int32_t run_fetch(Tensor** in, int32_t n_in, Tensor** out, int32_t n_out) {
  return carried("cuda.fetch", fetch_here, in, n_in, out, n_out);
}

}  // namespace specc

using specc::gpu;

extern "C" {

int32_t specc_cuda_enter(specc_tensor** in, int32_t n_in) {
  return specc::recorded([&] {
    gpu->enter();
    for (int32_t i = 0; i < n_in; i++) {
      specc::Storage* storage = in[i]->storage;
      if (storage->device != nullptr) continue;
      if (!storage->constant) {
        throw specc::Error(specc::Code::Compute, "a leaf reads memory of the host that is no weight")
            .where("input " + std::to_string(i));
      }
      specc::Block* block = gpu->take(storage->bytes);
      try {
        gpu->upload_once(block->at, storage->data, storage->bytes);
      } catch (...) {
        gpu->give(block);
        throw;
      }
      storage->device = block;
      storage->forget = specc::forget_block;
    }
  });
}

int32_t specc_cuda_data(specc_tensor* tensor, void** result) {
  if (tensor->storage->device == nullptr) return specc::fail("a leaf reads memory of the host");
  *result = reinterpret_cast<void*>(specc::address(tensor));
  return specc::kOk;
}

int32_t specc_cuda_empty(int64_t ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t device_type,
                         int32_t, specc_tensor** result) {
  if (device_type != 1) return specc::fail("a leaf wants memory of a device of type %d", device_type);
  int64_t span = 1;
  for (int64_t d = 0; d < ndim; d++) span = sizes[d] == 0 ? 0 : span + (span > 0 ? (sizes[d] - 1) * strides[d] : 0);
  return specc::recorded([&] {
    specc::Block* block = gpu->take(static_cast<size_t>(span) * specc::dtype_size(dtype));
    *result = specc::over(block, dtype, static_cast<int32_t>(ndim), sizes, strides);
    if (*result == nullptr) throw std::bad_alloc();
  });
}

int32_t specc_cuda_clone(specc_tensor* source, specc_tensor** result) {
  if (specc_cuda_empty(source->ndim, source->sizes, source->strides, source->dtype, 1, 0, result) != specc::kOk) return 1;
  const specc::Status status = specc::recorded([&] {
    gpu->copy(specc::address(*result), specc::address(source), specc::block_of((*result)->storage)->bytes);
  });
  if (status != specc::kOk) specc::release(std::exchange(*result, nullptr));
  return status;
}

int32_t specc_cuda_load(const void* cubin, const char* kernel, uint32_t shared_bytes, CUfunction* result) {
  return specc::recorded([&] { *result = gpu->load(cubin, kernel, shared_bytes); });
}

int32_t specc_cuda_launch(CUfunction kernel, uint32_t x, uint32_t y, uint32_t z, uint32_t threads, uint32_t shared_bytes,
                          const void* arguments, uint32_t count) {
  return specc::recorded([&] {
    gpu->launch(kernel, x, y, z, threads, shared_bytes, static_cast<const specc::Argument*>(arguments), count);
  });
}

__attribute__((visibility("default"))) const specc_device* specc_model_device(void) { return &specc::kDevice; }

__attribute__((visibility("default"))) int32_t specc_model_arena(const void* memory, int64_t bytes) {
  specc::clear_error();
  return specc::recorded([&] {
    gpu->enter();
    const auto size = static_cast<size_t>(bytes);
    gpu->zero(*specc::arenas.begin(memory, size, [&] { return gpu->take(size); }));
  });
}

__attribute__((visibility("default"))) void specc_model_arena_end(const void* memory) {
  if (specc::Block* const block = specc::arenas.end(memory)) gpu->give(block);
}

__attribute__((visibility("default"))) void specc_model_weight(specc_tensor* view) { view->storage->constant = true; }
}
