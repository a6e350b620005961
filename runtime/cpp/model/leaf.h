// What a leaf that Inductor wrote is compiled against. Torch's own headers bring a container of models along, with
// constants to load, update and fold, locks and regular expressions: ten seconds of compiling for each leaf. A leaf has no
// constants and one caller at a time, so it needs a class to hang run_impl on, and three functions.
//
// Before it, `SPECC_LEAF(name)` is defined as this leaf's name for a function, and `aot_inductor` as its namespace.
#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/util/generic_math.h>
#include <torch/csrc/inductor/aoti_runtime/scalar_to_tensor.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

namespace torch::aot_inductor {

using DeviceStreamType = void*;
using ConstantMap = std::unordered_map<std::string, MaybeOwningAtenTensorHandle>;

struct AOTInductorModelKernelsBase {
  virtual ~AOTInductorModelKernelsBase() = default;
};

// The members that a generated constructor fills in.
class AOTInductorModelBase {
 public:
  AOTInductorModelBase(size_t inputs, size_t outputs, size_t, const std::string&, std::optional<std::string>, bool)
      : inputs_info_(inputs), outputs_info_(outputs) {}

  bool takes(size_t inputs, size_t outputs) const {
    return inputs == inputs_info_.size() && outputs == outputs_info_.size();
  }

 protected:
  struct Info {
    const char* name = nullptr;
  };

  void update_constants_map(std::shared_ptr<ConstantMap>) {}
  void update_constants_array(std::shared_ptr<std::vector<ConstantHandle>>) {}

  std::vector<Info> inputs_info_, outputs_info_;
  const char *in_spec_ = nullptr, *out_spec_ = nullptr;
  int32_t device_idx_ = -1;  // the CPU
  std::optional<std::string> cubin_dir_;  // leaves for GPUs hand it on; their kernels lie in them
};

class AOTInductorModel : public AOTInductorModelBase {
 public:
  AOTInductorModel(std::shared_ptr<ConstantMap>, std::shared_ptr<std::vector<ConstantHandle>>, const std::string&,
                   std::optional<std::string>);
  void run_impl(AtenTensorHandle* in, AtenTensorHandle* out, DeviceStreamType, AOTIProxyExecutorHandle);
  std::unordered_map<std::string, AtenTensorHandle> const_run_impl(DeviceStreamType, AOTIProxyExecutorHandle, bool);
  void _const_run_impl(std::vector<AtenTensorHandle>&, DeviceStreamType, AOTIProxyExecutorHandle);

 private:
  std::unique_ptr<AOTInductorModelKernelsBase> kernels_;
};

}  // namespace torch::aot_inductor

// Inputs are what the plan was checked against when the artifact was loaded.
constexpr bool _check_aoti_runtime_check_inputs_env() { return false; }
inline void __check_inputs_outputs(AtenTensorHandle*, AtenTensorHandle*) {}

static thread_local std::string specc_leaf_error;

template <typename Body>
static int32_t specc_leaf_told(const Body& body) {
  try {
    body();
    return AOTI_RUNTIME_SUCCESS;
  } catch (const std::exception& error) {
    specc_leaf_error = error.what();
  } catch (...) {
    specc_leaf_error = "unknown exception";
  }
  return AOTI_RUNTIME_FAILURE;
}

#ifndef SPECC_LEAF_ENTER
#define SPECC_LEAF_ENTER(in, n_in)  // what a device wants done with the inputs first
#endif

extern "C" {

int32_t SPECC_LEAF(create)(void** leaf) {
  using torch::aot_inductor::AOTInductorModel;
  return specc_leaf_told([&] { *leaf = new AOTInductorModel(nullptr, nullptr, "cpu", std::nullopt); });
}

// Nulls the slots of `in` that it takes over; after a failure the caller frees those that are left.
int32_t SPECC_LEAF(run)(void* leaf, AtenTensorHandle* in, int n_in, AtenTensorHandle* out, int n_out) {
  return specc_leaf_told([&] {
    auto& model = *static_cast<torch::aot_inductor::AOTInductorModel*>(leaf);
    AOTI_RUNTIME_CHECK(model.takes(n_in, n_out), "wrong number of inputs or outputs");
    SPECC_LEAF_ENTER(in, n_in);
    model.run_impl(in, out, nullptr, nullptr);
  });
}

const char* SPECC_LEAF(error)() { return specc_leaf_error.c_str(); }
}
