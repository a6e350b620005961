#include "plan.h"

#include <algorithm>

#include "error.h"

namespace specc {
namespace {

constexpr size_t kWeightAlignment = 64;
constexpr size_t kMaxOperands = 4096;

class Compiler {
 public:
  Compiler(const FunctionSpec& function, const std::vector<StateSpec>& state, const ModelLibrary& library,
           WeightTable& weights)
      : function_(function), state_(state), library_(library), weights_(weights) {}

  Plan compile() {
    plan_.name = function_.name;
    plan_.inputs = function_.inputs;
    plan_.outputs = function_.outputs;
    for (const auto& input : function_.inputs) define(input.name, function_.name + ".inputs");
    for (size_t i = 0; i < function_.calls.size(); ++i) {
      instruction(function_.calls[i], function_.name + ".plan[" + std::to_string(i) + "]");
    }
    for (const auto& output : function_.outputs) {
      plan_.output_slots.push_back(local(output.name, function_.name + ".outputs"));
    }
    mark_last_uses();
    return std::move(plan_);
  }

 private:
  [[noreturn]] static void fail(const std::string& what, const std::string& where) {
    throw Error(Code::Plan, what).where("functions." + where).cure("compile the artifact again");
  }

  uint32_t define(const std::string& name, const std::string& where) {
    if (!slots_.emplace(name, plan_.slots).second) fail("the value '" + name + "' is defined twice", where);
    return plan_.slots++;
  }

  uint32_t local(const std::string& name, const std::string& where) const {
    const auto found = slots_.find(name);
    if (found == slots_.end()) fail("the value '" + name + "' is used before it is defined", where);
    return found->second;
  }

  void instruction(const CallSpec& call, const std::string& where) {
    const auto entry = library_.entry(call.entry);
    if (!entry) fail("the model library has no entry '" + call.entry + "'", where);
    if (call.in.size() > kMaxOperands || call.out.size() > kMaxOperands) fail("too many operands", where);
    Instruction instruction{*entry, {}, {}, {}, call.attrs, call.entry};
    for (const auto& ref : call.in) instruction.in.push_back(operand(ref, where));
    for (const auto& name : call.out) instruction.out.push_back(define(name, where));
    plan_.widest_in = std::max(plan_.widest_in, call.in.size());
    plan_.widest_out = std::max(plan_.widest_out, call.out.size());
    plan_.instructions.push_back(std::move(instruction));
  }

  Operand operand(const std::string& ref, const std::string& where) {
    if (ref.rfind('%', 0) == 0) return {Operand::Source::kLocal, false, local(ref.substr(1), where)};
    if (ref.rfind("w:", 0) == 0) return {Operand::Source::kWeight, false, weights_.require(ref.substr(2), where)};
    if (ref.rfind("s:", 0) == 0) return {Operand::Source::kState, false, state(ref.substr(2), where)};
    fail("'" + ref + "' is not a reference (%local, w:WEIGHT or s:STATE)", where);
  }

  uint32_t state(const std::string& name, const std::string& where) const {
    for (size_t i = 0; i < state_.size(); ++i) {
      if (state_[i].name == name) return static_cast<uint32_t>(i);
    }
    throw Error(Code::Binding, "the state buffer '" + name + "' is missing").where("functions." + where);
  }

  // Backwards: the first sight of a slot is its last use. Outputs of the function are read after the last instruction.
  void mark_last_uses() {
    std::vector<bool> needed(plan_.slots, false);
    for (const uint32_t slot : plan_.output_slots) needed[slot] = true;
    for (auto instruction = plan_.instructions.rbegin(); instruction != plan_.instructions.rend(); ++instruction) {
      for (const uint32_t slot : instruction->out) {
        if (!needed[slot]) instruction->dead.push_back(slot);
      }
      for (auto operand = instruction->in.rbegin(); operand != instruction->in.rend(); ++operand) {
        if (operand->source != Operand::Source::kLocal || needed[operand->index]) continue;
        operand->last_use = true;
        needed[operand->index] = true;
      }
    }
  }

  const FunctionSpec& function_;
  const std::vector<StateSpec>& state_;
  const ModelLibrary& library_;
  WeightTable& weights_;
  std::unordered_map<std::string, uint32_t> slots_;
  Plan plan_;
};

int index_named(const std::vector<ValueSpec>& values, const char* name) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].name == name) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

int Plan::input(const char* value_name) const { return index_named(inputs, value_name); }
int Plan::output(const char* value_name) const { return index_named(outputs, value_name); }

WeightTable::~WeightTable() {
  const Turn turn(library_.turn());
  for (specc_tensor* view : views_) library_.api().release(view);
}

uint32_t WeightTable::require(const std::string& name, const std::string& where) {
  const auto known = index_.find(name);
  if (known != index_.end()) return known->second;
  const Safetensors::Tensor* tensor = file_.find(name);
  if (tensor == nullptr) {
    throw Error(Code::Binding, "the weight '" + name + "' is missing").where("functions." + where);
  }
  const auto address = reinterpret_cast<uintptr_t>(file_.data(*tensor));
  if (tensor->bytes > 0 && address % kWeightAlignment != 0) {
    throw Error(Code::Binding, "the weight '" + name + "' is not aligned")
        .where("functions." + where)
        .expected("an offset in the file, and a file in memory, at a multiple of " + std::to_string(kWeightAlignment))
        .found("an offset of " + std::to_string(tensor->offset) + ", at address " + std::to_string(address));
  }
  views_.reserve(views_.size() + 1);  // so that a view, once made, is kept
  const Turn turn(library_.turn());
  // The model takes a plain pointer, but the mapping is read-only: a write to a weight faults instead of corrupting it.
  specc_tensor* view = library_.api().view(const_cast<void*>(file_.data(*tensor)), tensor->dtype,
                                           static_cast<int32_t>(tensor->shape.size()), tensor->shape.data());
  if (view == nullptr) throw std::bad_alloc();
  views_.push_back(view);
  library_.keep(view);
  return index_.emplace(name, static_cast<uint32_t>(views_.size() - 1)).first->second;
}

Plan compile_plan(const FunctionSpec& function, const std::vector<StateSpec>& state, const ModelLibrary& library,
                  WeightTable& weights) {
  return Compiler(function, state, library, weights).compile();
}

}  // namespace specc
