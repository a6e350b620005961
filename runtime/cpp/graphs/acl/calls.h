// The calls of CANN's libascendcl that specc makes, found when an artifact is opened: one is made, copied and inspected
// without CANN.
#pragma once

#ifdef SPECC_REAL_ACL  // a test: against CANN's own headers
#include "acl/acl.h"
#else
#include "acl/declared.h"
#endif

// Every release since 8.0 has these.
#define SPECC_ACL_CALLS(call)                                                                                         \
  call(aclInit) call(aclGetRecentErrMsg) call(aclrtGetSocName) call(aclrtSetDevice) call(aclrtResetDevice)            \
  call(aclrtCreateContext) call(aclrtDestroyContext) call(aclrtSetCurrentContext) call(aclrtCreateStream)             \
  call(aclrtDestroyStream) call(aclrtSynchronizeStream) call(aclrtMalloc) call(aclrtFree) call(aclrtMallocHost)       \
  call(aclrtFreeHost) call(aclrtMemset) call(aclrtMemcpy) call(aclrtMemcpyAsync) call(aclmdlQuerySize)                \
  call(aclmdlCreateConfigHandle) call(aclmdlDestroyConfigHandle) call(aclmdlSetConfigOpt) call(aclmdlLoadWithConfig)  \
  call(aclmdlUnload) call(aclmdlCreateDesc) call(aclmdlDestroyDesc) call(aclmdlGetDesc) call(aclmdlGetNumInputs)      \
  call(aclmdlGetNumOutputs) call(aclmdlGetInputSizeByIndex) call(aclmdlGetOutputSizeByIndex)                          \
  call(aclmdlGetInputNameByIndex) call(aclmdlGetInputDataType) call(aclmdlGetOutputDataType)                          \
  call(aclmdlCreateDataset) call(aclmdlDestroyDataset) call(aclmdlAddDatasetBuffer) call(aclCreateDataBuffer)         \
  call(aclDestroyDataBuffer) call(aclUpdateDataBuffer) call(aclmdlExecuteAsync)

// 8.5 and later. Without them weights are loaded once for each model, and ACL stays initialised until the process ends.
#define SPECC_ACL_LATER_CALLS(call) call(aclmdlSetExternalWeightAddress) call(aclFinalizeReference)

namespace specc {

struct Acl {
#define SPECC_MEMBER(name) decltype(&::name) name = nullptr;
  SPECC_ACL_CALLS(SPECC_MEMBER)
  SPECC_ACL_LATER_CALLS(SPECC_MEMBER)
#undef SPECC_MEMBER
};

// The library of the CANN that the environment names, else the one that the dynamic linker finds. It stays loaded.
// Throws Error(NoRuntime).
const Acl& load_acl();

// Throws what a failed call means; nothing for ACL_SUCCESS. `call` is the function, `where` the file or graph.
void acl_check(const Acl& acl, aclError result, const char* call, const char* where);

}  // namespace specc
