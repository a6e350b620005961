// specc_model_entry: the one symbol of a model library, and the table behind it.
#include "specc_model.h"

#include <memory>
#include <new>

#include "builtins.h"
#include "leaf_table.h"
#include "parallel.h"

namespace specc {

specc_host host = {nullptr, nullptr, 1};

namespace {

// Entries are the leaves, in their order, then the built-ins.
std::unique_ptr<const char*[]> entry_names;
std::unique_ptr<void*[]> instances;  // of leaves, made when first run

int32_t attach(const specc_host* lent) {
  host = *lent;
  return kOk;
}

specc_tensor* view(void* data, int32_t dtype, int32_t ndim, const int64_t* shape) {
  clear_error();
  int64_t strides[kMaxDims] = {};
  if (ndim <= kMaxDims) contiguous_strides(ndim, shape, strides);
  return new_borrowed(data, 0, dtype, ndim, shape, strides);
}

specc_tensor* retain_tensor(specc_tensor* tensor) {
  retain(tensor);
  return tensor;
}

void* data(specc_tensor* tensor) {
  clear_error();
  if (fetch(tensor) != kOk) return nullptr;
  if (tensor->storage->data == nullptr) {
    fail("a device keeps it");
    return nullptr;
  }
  return tensor->begin();
}

int32_t info(specc_tensor* tensor, int32_t* dtype, int32_t* ndim, const int64_t** shape, const int64_t** stride) {
  *dtype = tensor->dtype;
  *ndim = tensor->ndim;
  *shape = tensor->sizes;
  *stride = tensor->strides;
  return kOk;
}

Status run_leaf(int32_t index, const Call& call) {
  const specc_leaf& leaf = specc_leaves[index];
  if (call.n_attrs != 0) return fail("%s: a compiled entry takes no attributes", leaf.name);
  if (instances[index] == nullptr && leaf.create(&instances[index]) != kOk) {
    instances[index] = nullptr;
    return fail_unless_told("%s: %s", leaf.name, leaf.last_error());
  }
  if (leaf.run(instances[index], call.in, call.n_in, call.out, call.n_out) == kOk) return kOk;
  return fail_unless_told("%s: %s", leaf.name, leaf.last_error());
}

int32_t run(int32_t entry, specc_tensor** in, int32_t n_in, specc_tensor** out, int32_t n_out, const int64_t* attrs,
            int32_t n_attrs) {
  clear_error();
  for (int32_t i = 0; i < n_out; i++) out[i] = nullptr;
  const Call call{in, n_in, out, n_out, attrs, n_attrs};
  Status status = 1;
  if (entry < 0 || entry >= specc_leaf_count + kBuiltinCount) {
    fail("there is no entry %d", entry);
  } else if (entry < specc_leaf_count) {
    status = run_leaf(entry, call);
  } else {
    status = kBuiltins[entry - specc_leaf_count].run(call);
  }
  // A leaf nulls the slots of inputs it has taken over; what is left is ours to drop, on success and on failure.
  const bool taken = entry >= 0 && entry < specc_leaf_count && status == kOk;
  for (int32_t i = 0; i < n_in; i++) {
    if (!taken) release(in[i]);
    in[i] = nullptr;
  }
  for (int32_t i = 0; i < n_out && status != kOk; i++) {
    release(out[i]);
    out[i] = nullptr;
  }
  return status;
}

specc_model table = {
    SPECC_MODEL_ABI, specc_isa, 0, nullptr, attach, view, retain_tensor, release, data, info, run, error_text,
};

bool fill_table() {
  const int32_t count = specc_leaf_count + kBuiltinCount;
  entry_names.reset(new (std::nothrow) const char*[count]);
  instances.reset(new (std::nothrow) void*[specc_leaf_count + 1]());
  if (entry_names == nullptr || instances == nullptr) return false;
  for (int i = 0; i < specc_leaf_count; i++) entry_names[i] = specc_leaves[i].name;
  for (int i = 0; i < kBuiltinCount; i++) entry_names[specc_leaf_count + i] = kBuiltins[i].name;
  table.entry_count = count;
  table.entry_names = entry_names.get();
  return true;
}

}  // namespace
}  // namespace specc

extern "C" __attribute__((visibility("default"))) const specc_model* specc_model_entry(void) {
  static const bool filled = specc::fill_table();
  return filled ? &specc::table : nullptr;
}
