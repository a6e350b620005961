// Hand-written leaves that reach the shim as compiled ones do, so that tests can see through specc_model_entry.
#include <cstring>

#include "leaf_table.h"
#include "integers.h"
#include "pool.h"

using Handle = specc_tensor*;
extern "C" {
int32_t aoti_torch_empty_strided(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Handle*);
int32_t aoti_torch__reinterpret_tensor(Handle, int64_t, const int64_t*, const int64_t*, int64_t, Handle*);
int32_t aoti_torch_cpu_mm_out(Handle, Handle, Handle);
int32_t aoti_torch_cpu_addmm_out(Handle, Handle, Handle, Handle, double, double);
int32_t aoti_torch_cpu_bmm_out(Handle, Handle, Handle);
int32_t aoti_torch_cpu_linear(Handle, Handle, Handle*, int64_t, const char*, Handle*);
int32_t aoti_torch_get_sizes(Handle, int64_t**);
int32_t aoti_torch_get_dim(Handle, int64_t*);
int32_t aoti_torch_get_data_ptr(Handle, void**);
int32_t aoti_torch_delete_tensor_object(Handle);
int32_t aoti_torch_clone(Handle, Handle*);
int32_t aoti_torch_copy_(Handle, Handle, int32_t);
int32_t aoti_torch_zero_(Handle);
}

namespace {

int32_t create(void** container) {
  static int nothing;
  *container = &nothing;
  return 0;
}
const char* last_error() { return "the leaf's own text"; }

void take(Handle* in, int count) {
  for (int i = 0; i < count; i++) {
    aoti_torch_delete_tensor_object(in[i]);
    in[i] = nullptr;
  }
}

Handle f32(int64_t rows, int64_t columns) {
  const int64_t sizes[] = {rows, columns};
  const int64_t strides[] = {columns, 1};
  Handle made = nullptr;
  aoti_torch_empty_strided(2, sizes, strides, SPECC_F32, 0, 0, &made);
  return made;
}

// [K, M] and [K, N] -> a^T b, so that strides are not the plain ones.
int32_t mm(void*, Handle* in, int n_in, Handle* out, int) {
  int64_t *a, *b;
  aoti_torch_get_sizes(in[0], &a);
  aoti_torch_get_sizes(in[1], &b);
  const int64_t sizes[] = {a[1], a[0]};
  const int64_t strides[] = {1, a[1]};
  Handle turned = nullptr;
  aoti_torch__reinterpret_tensor(in[0], 2, sizes, strides, 0, &turned);
  out[0] = f32(a[1], b[1]);
  const int32_t status = aoti_torch_cpu_mm_out(out[0], turned, in[1]);
  aoti_torch_delete_tensor_object(turned);
  if (status == 0) take(in, n_in);
  return status;
}

// bias [N], a [M, K], b [K, N] -> 2 a b + 0.5 bias
int32_t addmm(void*, Handle* in, int n_in, Handle* out, int) {
  int64_t *a, *b;
  aoti_torch_get_sizes(in[1], &a);
  aoti_torch_get_sizes(in[2], &b);
  out[0] = f32(a[0], b[1]);
  const int32_t status = aoti_torch_cpu_addmm_out(out[0], in[0], in[1], in[2], 0.5, 2.0);
  take(in, n_in);
  return status;
}

int32_t bmm(void*, Handle* in, int n_in, Handle* out, int) {
  int64_t *a, *b;
  aoti_torch_get_sizes(in[0], &a);
  aoti_torch_get_sizes(in[1], &b);
  const int64_t sizes[] = {a[0], a[1], b[2]};
  const int64_t strides[] = {a[1] * b[2], b[2], 1};
  aoti_torch_empty_strided(3, sizes, strides, SPECC_F32, 0, 0, &out[0]);
  const int32_t status = aoti_torch_cpu_bmm_out(out[0], in[0], in[1]);
  take(in, n_in);
  return status;
}

// A transposed view of x [A, B], cloned; then its second row zeroed and its first overwritten by `row` broadcast.
int32_t shuffle(void*, Handle* in, int n_in, Handle* out, int) {
  int64_t* x;
  aoti_torch_get_sizes(in[0], &x);
  const int64_t sizes[] = {x[1], x[0]};
  const int64_t strides[] = {1, x[1]};
  Handle turned = nullptr;
  aoti_torch__reinterpret_tensor(in[0], 2, sizes, strides, 0, &turned);
  out[0] = f32(x[1], x[0]);
  aoti_torch_copy_(out[0], turned, 0);
  const int64_t one[] = {1, x[0]};
  const int64_t flat[] = {x[0], 1};
  Handle row = nullptr;
  aoti_torch__reinterpret_tensor(out[0], 2, one, flat, x[0], &row);
  aoti_torch_zero_(row);
  aoti_torch_delete_tensor_object(row);
  aoti_torch__reinterpret_tensor(out[0], 2, one, flat, 0, &row);
  aoti_torch_copy_(row, in[1], 0);
  aoti_torch_delete_tensor_object(row);
  aoti_torch_clone(turned, &out[1]);
  aoti_torch_delete_tensor_object(turned);
  take(in, n_in);
  return 0;
}

// Linear on every second row of x [2M, K]: leading strides must be honoured.
int32_t every_second(void*, Handle* in, int n_in, Handle* out, int) {
  int64_t *x, *w;
  aoti_torch_get_sizes(in[0], &x);
  aoti_torch_get_sizes(in[1], &w);
  const int64_t sizes[] = {x[0] / 2, x[1]};
  const int64_t strides[] = {2 * x[1], 1};
  Handle half = nullptr;
  aoti_torch__reinterpret_tensor(in[0], 2, sizes, strides, 0, &half);
  const int32_t status = aoti_torch_cpu_linear(half, in[1], nullptr, w[0] * 16, "f32", &out[0]);
  aoti_torch_delete_tensor_object(half);
  take(in, n_in);
  return status;
}

int32_t refuse(void*, Handle*, int, Handle*, int) { return 1; }

int32_t allocations(void*, Handle*, int, Handle* out, int) {
  const int64_t one = 1;
  aoti_torch_empty_strided(1, &one, &one, SPECC_I64, 0, 0, &out[0]);
  void* data = nullptr;
  aoti_torch_get_data_ptr(out[0], &data);
  *static_cast<int64_t*>(data) = static_cast<int64_t>(specc::pool_system_allocations());
  return 0;
}

// Index i64[1]: from now on that entry of kIntegerKernels computes, or the best if there is no such. Out: how many there
// are, and 1 if it runs here.
int32_t use_integer_kernels(void*, Handle* in, int n_in, Handle* out, int) {
  void* data = nullptr;
  aoti_torch_get_data_ptr(in[0], &data);
  const int64_t index = *static_cast<int64_t*>(data);
  int64_t runs = 0;
  for (int64_t i = specc::kIntegerKernelsCount - 1; i >= 0; i--) {
    const bool here = specc::kIntegerKernels[i]->runs_here();
    if (here && (i == index || index < 0)) specc::integer_kernels = specc::kIntegerKernels[i];
    if (i == index) runs = here;
  }
  const int64_t two = 2, one = 1;
  aoti_torch_empty_strided(1, &two, &one, SPECC_I64, 0, 0, &out[0]);
  aoti_torch_get_data_ptr(out[0], &data);
  static_cast<int64_t*>(data)[0] = specc::kIntegerKernelsCount;
  static_cast<int64_t*>(data)[1] = runs;
  take(in, n_in);
  return 0;
}

}  // namespace

extern const specc_leaf specc_leaves[] = {
    {"mm", create, mm, last_error},           {"addmm", create, addmm, last_error},
    {"bmm", create, bmm, last_error},         {"shuffle", create, shuffle, last_error},
    {"every_second", create, every_second, last_error}, {"refuse", create, refuse, last_error},
    {"allocations", create, allocations, last_error},
    {"use_integer_kernels", create, use_integer_kernels, last_error},
};
extern const int specc_leaf_count = sizeof specc_leaves / sizeof specc_leaves[0];
extern const char specc_isa[] = TEST_ISA;
