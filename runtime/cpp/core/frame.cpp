#include "frame.h"

#include <algorithm>
#include <utility>

#include "dtype.h"
#include "error.h"

namespace specc {
namespace {

[[noreturn]] void other_value(const Plan& plan, size_t index, std::string expected) {
  throw Error(Code::Compute, "a compiled function returned another value than the manifest says")
      .where(plan.name + "." + plan.outputs[index].name)
      .expected(std::move(expected));
}

}  // namespace

void Frame::reserve(const Plan& plan) {
  slots_.resize(std::max<size_t>(slots_.size(), plan.slots), nullptr);
  in_.resize(std::max(in_.size(), plan.widest_in), nullptr);
  out_.resize(std::max(out_.size(), plan.widest_out), nullptr);
}

void Frame::execute(const Plan& plan, specc_tensor* const* inputs) {
  clear();
  for (size_t i = 0; i < plan.inputs.size(); ++i) slots_[i] = model_.retain(inputs[i]);
  for (const auto& instruction : plan.instructions) run(plan, instruction);
  counts_.launches += plan.instructions.size();
  ++counts_.host_syncs;
}

void Frame::run(const Plan& plan, const Instruction& instruction) {
  const size_t n_in = instruction.in.size(), n_out = instruction.out.size();
  for (size_t i = 0; i < n_in; ++i) in_[i] = fetch(instruction.in[i]);
  std::fill_n(out_.begin(), n_out, nullptr);
  const int32_t failed =
      model_.run(instruction.entry, in_.data(), static_cast<int32_t>(n_in), out_.data(), static_cast<int32_t>(n_out),
                 instruction.attrs.data(), static_cast<int32_t>(instruction.attrs.size()));
  for (size_t i = 0; i < n_out && failed == 0; ++i) slots_[instruction.out[i]] = out_[i];
  const bool incomplete = std::find(out_.begin(), out_.begin() + n_out, nullptr) != out_.begin() + n_out;
  if (failed != 0 || incomplete) {
    const char* reason = failed != 0 ? model_.error() : "an output is missing";
    throw Error(Code::Compute, "a compiled function failed")
        .where(plan.name + ", " + instruction.entry_name)
        .told(reason);
  }
  for (const uint32_t slot : instruction.dead) release(slot);
}

specc_tensor* Frame::fetch(const Operand& operand) {
  switch (operand.source) {
    case Operand::Source::kWeight:
      return model_.retain(weights_[operand.index]);
    case Operand::Source::kState:
      return model_.retain(state_[operand.index]);
    default:
      return operand.last_use ? std::exchange(slots_[operand.index], nullptr) : model_.retain(slots_[operand.index]);
  }
}

const int64_t* Frame::integers(const Plan& plan, size_t index, size_t count) const {
  specc_tensor* tensor = output(plan, index);
  int32_t dtype = 0, ndim = 0;
  const int64_t *shape = nullptr, *stride = nullptr;
  const bool right = model_.info(tensor, &dtype, &ndim, &shape, &stride) == 0 && dtype == SPECC_I64 && ndim == 1 &&
                     shape[0] == static_cast<int64_t>(count) && (count <= 1 || stride[0] == 1);
  if (!right) other_value(plan, index, "i64[" + std::to_string(count) + "]");
  return static_cast<const int64_t*>(data(plan, index));
}

Frame::Matrix Frame::matrix(const Plan& plan, size_t index, size_t rows) const {
  specc_tensor* tensor = output(plan, index);
  const std::vector<int64_t>& agreed = plan.outputs[index].shape;
  const int64_t wanted = agreed[0] == kRows ? static_cast<int64_t>(rows) : agreed[0];
  int32_t dtype = 0, ndim = 0;
  const int64_t *shape = nullptr, *stride = nullptr;
  const bool right = model_.info(tensor, &dtype, &ndim, &shape, &stride) == 0 && dtype == SPECC_F32 && ndim == 2 &&
                     shape[0] == wanted && shape[1] == agreed[1] && stride[1] == 1 && stride[0] >= 0;
  if (!right) other_value(plan, index, "f32" + shape_text(agreed));
  return {static_cast<const float*>(data(plan, index)), static_cast<size_t>(stride[0])};
}

const void* Frame::data(const Plan& plan, size_t index) const {
  const void* found = model_.data(output(plan, index));
  if (found != nullptr) return found;
  throw Error(Code::Compute, "a device does not hand out a value")
      .where(plan.name + "." + plan.outputs[index].name)
      .told(model_.error());
}

void Frame::release(uint32_t slot) noexcept {
  if (specc_tensor* tensor = std::exchange(slots_[slot], nullptr)) model_.release(tensor);
}

void Frame::clear() noexcept {
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) release(slot);
}

}  // namespace specc
