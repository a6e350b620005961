// Session::run: one function of the plan with the caller's inputs, for tools and tests.

#include <algorithm>
#include <cstring>
#include <string>

#include "../dtype.h"
#include "../error.h"
#include "session.h"

namespace specc {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& where, const std::string& expected = "",
                         const std::string& found = "") {
  throw Error(Code::Option, what).where(where).expected(expected).found(found);
}

int64_t elements(const std::vector<int64_t>& shape, int64_t rows) {
  int64_t count = 1;
  for (const int64_t dimension : shape) count *= dimension == kRows ? rows : dimension;
  return count;
}

bool has_rows(const ValueSpec& value) {
  return std::find(value.shape.begin(), value.shape.end(), kRows) != value.shape.end();
}

// "T" is what makes the first input that has it as long as the caller's data.
int64_t rows_of(const Plan& plan, const size_t* counts, int64_t chunk) {
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    if (!has_rows(plan.inputs[i])) continue;
    const auto count = static_cast<int64_t>(std::min<size_t>(counts[i], INT64_MAX));
    for (int64_t rows = 1; rows <= chunk; ++rows) {
      if (elements(plan.inputs[i].shape, rows) == count) return rows;
    }
    refuse("an input has the wrong number of elements", plan.inputs[i].name, "1 to " + std::to_string(chunk) + " rows",
           std::to_string(count) + " elements");
  }
  return 1;
}

std::vector<std::vector<int64_t>> copy_inputs(const Plan& plan, const int64_t* const* inputs, const size_t* counts,
                                              int64_t rows) {
  std::vector<std::vector<int64_t>> copies;
  for (size_t i = 0; i < plan.inputs.size(); ++i) {
    const ValueSpec& input = plan.inputs[i];
    const int64_t expected = elements(input.shape, rows);
    if (static_cast<size_t>(expected) != counts[i] || (inputs[i] == nullptr && expected > 0)) {
      refuse("an input has the wrong number of elements", input.name, std::to_string(expected),
             std::to_string(counts[i]));
    }
    if (input.dtype != SPECC_I64 && input.dtype != SPECC_F64)
      refuse("this input cannot be given as integers", input.name);
    copies.emplace_back(inputs[i], inputs[i] + expected);
  }
  return copies;
}

void check_range(const ValueSpec& input, const std::vector<int64_t>& values, int64_t end) {
  for (const int64_t value : values) {
    if (value >= 0 && value < end) continue;
    refuse("an input is out of range", input.name, "0 to " + std::to_string(end - 1), std::to_string(value));
  }
}

// Ids must be words of the model, and positions and rows must lie in its state: a kernel indexes memory with them.
void check_inputs(const Plan& plan, const std::vector<std::vector<int64_t>>& inputs, const ModelSpec& model) {
  const int tokens_output = plan.output("tokens");
  int64_t draft_length = 0;
  if (tokens_output >= 0 && !plan.outputs[static_cast<size_t>(tokens_output)].shape.empty()) {
    draft_length = std::max<int64_t>(0, plan.outputs[static_cast<size_t>(tokens_output)].shape[0] - 1);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ValueSpec& input = plan.inputs[i];
    static const std::string kIds[] = {"tokens", "next_tokens", "root", "previous", "drafts"};
    if (std::find(std::begin(kIds), std::end(kIds), input.name) != std::end(kIds)) {
      check_range(input, inputs[i], model.vocab_size);
    } else if (input.name == "positions") {
      check_range(input, inputs[i], model.max_model_len);
    } else if (input.name == "rows") {
      check_range(input, inputs[i], model.max_model_len * model.max_num_seqs);
    } else if (input.name == "first_row") {
      check_range(input, inputs[i], model.max_model_len * (model.max_num_seqs - 1) + 1);
    } else if (input.name == "length") {
      check_range(input, inputs[i], model.max_model_len - draft_length);
    }
  }
}

// Views of the caller's data, released with the library's turn held.
class InputViews {
 public:
  InputViews(const specc_model& model, const Plan& plan, std::vector<std::vector<int64_t>>& data, int64_t rows)
      : model_(model) {
    views_.reserve(data.size());
    for (size_t i = 0; i < data.size(); ++i) {
      const ValueSpec& input = plan.inputs[i];
      if (input.dtype == SPECC_F64) {
        for (int64_t& value : data[i]) {
          const auto real = static_cast<double>(value);
          std::memcpy(&value, &real, sizeof real);
        }
      }
      std::vector<int64_t> shape = input.shape;
      std::replace(shape.begin(), shape.end(), kRows, rows);
      specc_tensor* view = model_.view(data[i].data(), input.dtype, static_cast<int32_t>(shape.size()), shape.data());
      if (view == nullptr) {
        release();
        throw std::bad_alloc();
      }
      views_.push_back(view);
    }
  }
  ~InputViews() { release(); }
  InputViews(const InputViews&) = delete;
  InputViews& operator=(const InputViews&) = delete;
  specc_tensor* const* data() const { return views_.data(); }

 private:
  void release() {
    for (specc_tensor* view : views_) model_.release(view);
    views_.clear();
  }

  const specc_model& model_;
  std::vector<specc_tensor*> views_;
};

void copy_strided(const char* from, const std::vector<int64_t>& shape, const int64_t* stride, size_t dimension,
                  size_t element, char*& to) {
  if (dimension == shape.size()) {
    std::memcpy(to, from, element);
    to += element;
    return;
  }
  for (int64_t i = 0; i < shape[dimension]; ++i) {
    copy_strided(from + i * stride[dimension] * static_cast<int64_t>(element), shape, stride, dimension + 1, element,
                 to);
  }
}

size_t copy_tensor(const specc_model& model, specc_tensor* tensor, void* output, size_t capacity) {
  int32_t dtype = 0, ndim = 0;
  const int64_t *sizes = nullptr, *stride = nullptr;
  if (model.info(tensor, &dtype, &ndim, &sizes, &stride) != 0) refuse("the output cannot be read", "output");
  if (dtype != SPECC_F32 && dtype != SPECC_I64) refuse("the first output is neither f32 nor i64", "output");
  const size_t element = dtype == SPECC_F32 ? 4 : 8;
  const std::vector<int64_t> shape(sizes, sizes + ndim);
  const auto bytes = checked_bytes(shape, static_cast<int64_t>(element));
  if (!bytes) refuse("the output is absurdly large", "output");
  if (output == nullptr || capacity < static_cast<size_t>(*bytes)) return static_cast<size_t>(*bytes);
  char* to = static_cast<char*>(output);
  const void* from = model.data(tensor);
  if (from == nullptr) throw Error(Code::Compute, "a device does not hand out a value").told(model.error());
  copy_strided(static_cast<const char*>(from), shape, stride, 0, element, to);
  return static_cast<size_t>(*bytes);
}

}  // namespace

size_t Session::run(const char* function, const int64_t* const* inputs, const size_t* counts, size_t n_inputs,
                    void* output, size_t capacity) {
  const Plan* plan = artifact_->plan(function);
  if (plan == nullptr) refuse("there is no such function", "function", "a name in the manifest's functions", function);
  if (n_inputs != plan->inputs.size() || (n_inputs > 0 && (inputs == nullptr || counts == nullptr))) {
    refuse("the function has another number of inputs", function, std::to_string(plan->inputs.size()),
           std::to_string(n_inputs));
  }
  if (place_.workspace().batched()) {
    throw Error(Code::SessionState, "functions are run on the state of one session alone, and this one is of a batch")
        .where(function)
        .cure("open it with specc_session_open");
  }
  const ModelSpec& model = artifact_->manifest().model;
  const bool score = plan == artifact_->rounds().score();
  const int64_t block = static_cast<int64_t>(artifact_->manifest().longest_draft()) + 1;
  const int64_t rows = rows_of(*plan, counts, score ? model.max_num_seqs * block : model.prefill_chunk);
  auto data = copy_inputs(*plan, inputs, counts, rows);
  check_inputs(*plan, data, model);

  // What the function writes is unknown to the engine: trust the state only before the first row it was given. (The
  // session's text begins at row 0.)
  drop_unread();
  const size_t lowest = lowest_row(*plan, data);
  written_ = std::min(written_, lowest);
  drafter_written_ = std::min(drafter_written_, lowest);
  taps_.rows = 0;

  state_.make_room(static_cast<size_t>(model.max_model_len * model.max_num_seqs), committed_.size());
  const Turn turn(artifact_->library().turn());
  const InputViews views(artifact_->library().api(), *plan, data, rows);
  const FrameGuard guard(frame_);
  frame_.execute(*plan, views.data());
  return plan->outputs.empty() ? 0 : copy_tensor(artifact_->library().api(), frame_.output(*plan, 0), output, capacity);
}

size_t Session::lowest_row(const Plan& plan, const std::vector<std::vector<int64_t>>& inputs) const {
  int index = plan.input("rows");
  if (index < 0) index = plan.input("positions");
  if (index < 0) index = plan.input("length");
  if (index < 0 || inputs[static_cast<size_t>(index)].empty()) return 0;
  const auto& values = inputs[static_cast<size_t>(index)];
  return static_cast<size_t>(*std::min_element(values.begin(), values.end()));
}

}  // namespace specc
