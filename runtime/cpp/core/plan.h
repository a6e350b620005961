// A manifest function compiled to instructions over numbered slots, so that a round looks nothing up.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "manifest.h"
#include "model_library.h"
#include "safetensors.h"

namespace specc {

// Where an instruction finds an operand.
struct Operand {
  enum class Source : uint8_t { kLocal, kWeight, kState };
  Source source;
  bool last_use;  // of a local value: the instruction takes the reference instead of sharing it
  uint32_t index;
};

struct Instruction {
  int32_t entry;
  std::vector<Operand> in;
  std::vector<uint32_t> out;   // slots
  std::vector<uint32_t> dead;  // slots among `out` that nobody reads
  std::vector<int64_t> attrs;
  std::string entry_name;  // for errors
};

// Input i lives in slot i.
struct Plan {
  std::string name;
  std::vector<ValueSpec> inputs, outputs;
  std::vector<uint32_t> output_slots;
  std::vector<Instruction> instructions;
  uint32_t slots = 0;
  size_t widest_in = 0, widest_out = 0;

  // Index of the input or output of that name, -1 if there is none.
  int input(const char* value_name) const;
  int output(const char* value_name) const;
};

// The weights that plans use, each viewed once however many plans share it.
class WeightTable {
 public:
  WeightTable(const Safetensors& file, ModelLibrary& library) : file_(file), library_(library) {}
  ~WeightTable();
  WeightTable(const WeightTable&) = delete;
  WeightTable& operator=(const WeightTable&) = delete;

  uint32_t require(const std::string& name, const std::string& where);  // throws Error(Binding)
  specc_tensor* const* views() const { return views_.data(); }

 private:
  const Safetensors& file_;
  ModelLibrary& library_;
  std::unordered_map<std::string, uint32_t> index_;
  std::vector<specc_tensor*> views_;
};

// Throws Error(Plan) or Error(Binding).
Plan compile_plan(const FunctionSpec& function, const std::vector<StateSpec>& state, const ModelLibrary& library,
                  WeightTable& weights);

}  // namespace specc
