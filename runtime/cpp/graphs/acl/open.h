// Opens an NPU for an artifact: what the generated graphs table names as specc_open_device.
#pragma once
#include <memory>
#include <string>

#include "device.h"

namespace specc {

// Null if the artifact's folder has no OMs. Settings: SPECC_NPU_DEVICE, the NPU's number; SPECC_NPU_POOL, MiB of its memory
// to take at once. Throws Error(NoRuntime, WrongDevice, BadModel, Memory, Npu, Option or File).
std::unique_ptr<GraphDevice> open_acl(const std::string& directory);

}  // namespace specc
