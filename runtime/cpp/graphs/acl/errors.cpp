// What ACL's return codes mean for who runs an artifact. Names and numbers: "aclError", hiascend.com, CANN 9.1
// (runtimeapi/aclcppdevg_03_6666), and acl/error_codes of the wheel torch-npu 2.14.0. By its rules 1xxxxx is wrong use,
// 2xxxxx want of resources, 5xxxxx a failure inside.
#include <string>

#include "acl/calls.h"
#include "core/error.h"

namespace specc {
namespace {

enum class Kind { kMemory, kNoNpu, kChip, kModel, kTimeout, kBroken, kOther };

struct Known {
  int code;
  const char* name;
  Kind kind;
};

constexpr Known kKnown[] = {
    {100003, "ACL_ERROR_INVALID_FILE", Kind::kModel},
    {100012, "ACL_ERROR_DESERIALIZE_MODEL", Kind::kModel},
    {100013, "ACL_ERROR_PARSE_MODEL", Kind::kModel},
    {100014, "ACL_ERROR_READ_MODEL_FAILURE", Kind::kModel},
    {100015, "ACL_ERROR_MODEL_SIZE_INVALID", Kind::kModel},
    {100016, "ACL_ERROR_MODEL_MISSING_ATTR", Kind::kModel},
    {107001, "ACL_ERROR_RT_INVALID_DEVICEID", Kind::kNoNpu},
    {107019, "ACL_ERROR_RT_WAIT_TIMEOUT", Kind::kTimeout},
    {107020, "ACL_ERROR_RT_TASK_TIMEOUT", Kind::kTimeout},
    {145002, "ACL_ERROR_GE_EXEC_MODEL_PATH_INVALID", Kind::kModel},
    {145006, "ACL_ERROR_GE_EXEC_MODEL_DATA_SIZE_INVALID", Kind::kModel},
    {200000, "ACL_ERROR_BAD_ALLOC", Kind::kMemory},
    {200002, "ACL_ERROR_INVALID_DEVICE", Kind::kNoNpu},
    {207001, "ACL_ERROR_RT_MEMORY_ALLOCATION", Kind::kMemory},
    {207004, "ACL_ERROR_RT_NO_DEVICE", Kind::kNoNpu},
    {207006, "ACL_ERROR_RT_NO_PERMISSION", Kind::kNoNpu},
    {207018, "ACL_ERROR_RT_DEVICE_OOM", Kind::kMemory},
    {207020, "ACL_ERROR_RT_TIMEOUT", Kind::kTimeout},
    {245000, "ACL_ERROR_GE_MEMORY_ALLOCATION", Kind::kMemory},
    {300000, "ACL_ERROR_STORAGE_OVER_LIMIT", Kind::kMemory},
    {507008, "ACL_ERROR_RT_SOC_VERSION", Kind::kChip},
    {507010, "ACL_ERROR_RT_LOST_HEARTBEAT", Kind::kBroken},
    {507011, "ACL_ERROR_RT_MODEL_EXECUTE", Kind::kOther},
    {507014, "ACL_ERROR_RT_AICORE_TIMEOUT", Kind::kTimeout},
    {507015, "ACL_ERROR_RT_AICORE_EXCEPTION", Kind::kOther},
    {507017, "ACL_ERROR_RT_AICPU_TIMEOUT", Kind::kTimeout},
    {507018, "ACL_ERROR_RT_AICPU_EXCEPTION", Kind::kOther},
    {507033, "ACL_ERROR_RT_DEV_SETUP_ERROR", Kind::kNoNpu},
    {507034, "ACL_ERROR_RT_VECTOR_CORE_TIMEOUT", Kind::kTimeout},
    {507035, "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION", Kind::kOther},
    {507046, "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT", Kind::kTimeout},
    {507053, "ACL_ERROR_RT_DEVICE_MEM_ERROR", Kind::kBroken},
    {507054, "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR", Kind::kBroken},
    {507899, "ACL_ERROR_RT_DRV_INTERNAL_ERROR", Kind::kBroken},
    {545001, "ACL_ERROR_GE_LOAD_MODEL", Kind::kModel},
    {545002, "ACL_ERROR_GE_EXEC_LOAD_MODEL_PARTITION_FAILED", Kind::kModel},
    {545003, "ACL_ERROR_GE_EXEC_LOAD_WEIGHT_PARTITION_FAILED", Kind::kModel},
    {545004, "ACL_ERROR_GE_EXEC_LOAD_TASK_PARTITION_FAILED", Kind::kModel},
    {545005, "ACL_ERROR_GE_EXEC_LOAD_KERNEL_PARTITION_FAILED", Kind::kModel},
    {545601, "ACL_ERROR_GE_MODEL_EXECUTE_TIMEOUT", Kind::kTimeout},
};

}  // namespace

void acl_check(const Acl& acl, aclError result, const char* call, const char* where) {
  if (result == 0) return;
  const Known* known = nullptr;
  for (const Known& entry : kKnown) {
    if (entry.code == result) known = &entry;
  }
  const char* said = acl.aclGetRecentErrMsg();
  std::string found = std::string(call) + ": " + std::to_string(result);
  if (known != nullptr) found += std::string(" ") + known->name;
  if (said != nullptr && *said != '\0') found += ", " + std::string(said).substr(0, 500);
  switch (known != nullptr ? known->kind : Kind::kOther) {
    case Kind::kMemory:
      throw Error(Code::Memory, "the NPU has no memory for this")
          .where(where)
          .found(found)
          .cure("end what else runs on the NPU (npu-smi info), or compile with a smaller --max-model-len");
    case Kind::kNoNpu:
      throw Error(Code::NoRuntime, "there is no NPU that this process may use")
          .where(where)
          .found(found)
          .cure("see npu-smi info, and choose one with SPECC_NPU_DEVICE");
    case Kind::kChip:
      throw Error(Code::WrongDevice, "an OM is for another chip")
          .where(where)
          .found(found)
          .cure("compile for the chip that npu-smi info names");
    case Kind::kModel:
      throw Error(Code::BadModel, "CANN cannot load an OM")
          .where(where)
          .found(found)
          .cure("delete the folder om, and run build_om.sh with this machine's CANN: an older CANN loads no newer OM");
    case Kind::kTimeout:
      throw Error(Code::Npu, "the NPU did not answer in time")
          .where(where)
          .found(found)
          .cure("see npu-smi info and the logs in ~/ascend/log");
    case Kind::kBroken:
      throw Error(Code::Npu, "the NPU or its driver is broken")
          .where(where)
          .found(found)
          .cure("see npu-smi info -t health, and reset the NPU");
    case Kind::kOther:
      break;
  }
  throw Error(Code::Npu, "CANN failed").where(where).found(found).cure("see the logs in ~/ascend/log, and report it");
}

}  // namespace specc
