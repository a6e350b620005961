// An NPU that this process has opened: ACL initialised, a device, a context and one stream.
#pragma once
#include <cstdint>

#include "acl/calls.h"

namespace specc {

class Npu {
 public:
  // `soc` is the chip that the OMs are for. Throws Error(NoRuntime) or Error(WrongDevice).
  Npu(int32_t device, const char* soc);
  ~Npu();
  Npu(const Npu&) = delete;
  Npu& operator=(const Npu&) = delete;

  const Acl& acl() const { return acl_; }
  aclrtStream stream() const { return stream_; }

  // Contexts belong to threads: every call from outside begins with this.
  void enter() const;
  // Waits for all that was begun. `where` names what failed, if something did.
  void wait(const char* where) const;
  void check(aclError result, const char* call, const char* where) const { acl_check(acl_, result, call, where); }

 private:
  void close() noexcept;

  const Acl& acl_;
  const int32_t device_;
  bool initialised_ = false, set_ = false;
  aclrtContext context_ = nullptr;
  aclrtStream stream_ = nullptr;
};

}  // namespace specc
