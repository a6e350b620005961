#include "acl/npu.h"

#include <cstring>
#include <string>

#include "core/error.h"

namespace specc {
namespace {

constexpr aclError kRepeated = 100002;  // ACL_ERROR_REPEAT_INITIALIZE: the app did it before, in CANN that counts not

}  // namespace

Npu::Npu(int32_t device, const char* soc) : acl_(load_acl()), device_(device) {
  const std::string name = "NPU " + std::to_string(device);
  const char* where = name.c_str();
  try {
    const aclError begun = acl_.aclInit(nullptr);
    if (begun != kRepeated) check(begun, "aclInit", where);
    initialised_ = begun != kRepeated;
    check(acl_.aclrtSetDevice(device), "aclrtSetDevice", where);
    set_ = true;
    const char* here = acl_.aclrtGetSocName();
    if (here == nullptr || std::strcmp(here, soc) != 0) {
      throw Error(Code::WrongDevice, "the artifact's OMs are for another NPU")
          .where(where)
          .expected(soc)
          .found(here != nullptr ? here : "aclrtGetSocName says nothing")
          .cure("delete the folder om, and run build_om.sh with the name of this NPU");
    }
    check(acl_.aclrtCreateContext(&context_, device), "aclrtCreateContext", where);
    check(acl_.aclrtCreateStream(&stream_), "aclrtCreateStream", where);
  } catch (...) {
    close();
    throw;
  }
}

Npu::~Npu() { close(); }

// In reverse. What fails now helps nobody.
void Npu::close() noexcept {
  if (context_ != nullptr) acl_.aclrtSetCurrentContext(context_);
  if (stream_ != nullptr) acl_.aclrtDestroyStream(stream_);
  if (context_ != nullptr) acl_.aclrtDestroyContext(context_);
  if (set_) acl_.aclrtResetDevice(device_);
  if (initialised_ && acl_.aclFinalizeReference != nullptr) acl_.aclFinalizeReference(nullptr);
}

void Npu::enter() const { check(acl_.aclrtSetCurrentContext(context_), "aclrtSetCurrentContext", "the NPU's context"); }

void Npu::wait(const char* where) const {
  check(acl_.aclrtSynchronizeStream(stream_), "aclrtSynchronizeStream", where);
}

}  // namespace specc
