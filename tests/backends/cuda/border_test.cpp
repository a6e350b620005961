// What leaves call, where a copy fails: nothing of the GPU may be left. Prints what is.
#include <cstdio>

#include "border.h"

extern const char specc_cuda_arch[] = "sm_90";
extern const int specc_cuda_archs[] = {90, 0};

extern "C" {
const specc_device* specc_model_device(void);
void nullgpu_fail(const char* call, int result);
long long nullgpu_living();
}

int main() {
  const specc_device* device = specc_model_device();
  const int64_t sizes[] = {5}, strides[] = {1};
  specc_tensor *source = nullptr, *copy = nullptr;
  if (device->open("") != 0 || specc_cuda_empty(1, sizes, strides, SPECC_F32, 1, 0, &source) != 0) return 1;
  if (specc_cuda_clone(source, &copy) != 0 || copy == nullptr) return 2;
  specc::release(copy);
  nullgpu_fail("cuMemcpyDtoDAsync_v2", 700);
  if (specc_cuda_clone(source, &copy) == 0 || copy != nullptr) return 3;
  specc::release(source);
  device->close();
  std::printf("living: %lld\n", nullgpu_living());
  return 0;
}
