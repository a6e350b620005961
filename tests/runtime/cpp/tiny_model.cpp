// A model.so written by hand: the border of specc_model.h, the built-in kernels in their plainest form, and the tiny
// language model as "compiled leaves". A test double for the border only; memory by malloc, so that tests may count
// what the engine itself allocates.

#include <cstdlib>
#include <cstring>
#include <string>

#include "specc_model.h"
#include "tiny_lm.h"

struct specc_tensor {
  int refs;
  int32_t dtype, ndim;
  int64_t shape[4], stride[4];
  char* data;
  bool owns;
};

#ifndef TINY_SALT
#define TINY_SALT 0  // another value makes another model of the same artifact
#endif

namespace {

thread_local char message[256];
const specc_host* host = nullptr;

struct Failure {
  const char* text;
};

specc_tensor* make(void* data, int32_t dtype, int32_t ndim, const int64_t* shape) {
  auto* tensor = static_cast<specc_tensor*>(std::calloc(1, sizeof(specc_tensor)));
  tensor->refs = 1;
  tensor->dtype = dtype;
  tensor->ndim = ndim;
  int64_t stride = 1;
  for (int32_t d = ndim; d-- > 0;) {
    tensor->shape[d] = shape[d];
    tensor->stride[d] = stride;
    stride *= shape[d];
  }
  tensor->owns = data == nullptr;
  tensor->data = static_cast<char*>(tensor->owns ? std::calloc(static_cast<size_t>(stride) + 1, 8) : data);
  return tensor;
}

specc_tensor* view(void* data, int32_t dtype, int32_t ndim, const int64_t* shape) {
  return make(data, dtype, ndim, shape);
}
specc_tensor* retain(specc_tensor* tensor) {
  ++tensor->refs;
  return tensor;
}
void release(specc_tensor* tensor) {
  if (--tensor->refs > 0) return;
  if (tensor->owns) std::free(tensor->data);
  std::free(tensor);
}
void* data(specc_tensor* tensor) {
#ifdef TINY_KEEPS_INTEGERS
  std::strcpy(message, "the device is gone");
  return tensor->dtype == SPECC_I64 ? nullptr : tensor->data;
#endif
  return tensor->data;
}
int32_t info(specc_tensor* tensor, int32_t* dtype, int32_t* ndim, const int64_t** shape, const int64_t** stride) {
  *dtype = tensor->dtype, *ndim = tensor->ndim, *shape = tensor->shape, *stride = tensor->stride;
  return 0;
}
int32_t attach(const specc_host* lent) {
  host = lent;
  return 0;
}

int64_t* ints(specc_tensor* tensor) { return reinterpret_cast<int64_t*>(tensor->data); }
float* floats(specc_tensor* tensor) { return reinterpret_cast<float*>(tensor->data); }
specc_tensor* new_ints(int64_t count) { return make(nullptr, SPECC_I64, 1, &count); }
specc_tensor* new_floats(int64_t rows, int64_t columns) {
  const int64_t shape[] = {rows, columns};
  return make(nullptr, SPECC_F32, 2, shape);
}

// ---- built-in kernels: (in, out, attrs) ----

void positions(specc_tensor** in, specc_tensor** out, const int64_t* attrs) {
  out[0] = new_ints(attrs[0]);
  for (int64_t i = 0; i < attrs[0]; ++i) {
    const int64_t position = ints(in[0])[0] + attrs[1] + i;
    ints(out[0])[i] = position < 0 ? 0 : position;
  }
}

void rows_of(specc_tensor** in, specc_tensor** out, const int64_t*) {
  out[0] = new_ints(in[0]->shape[0]);
  for (int64_t i = 0; i < in[0]->shape[0]; ++i) ints(out[0])[i] = ints(in[0])[i] + ints(in[1])[0];
}

void cat2(specc_tensor** in, specc_tensor** out, const int64_t*) {
  const int64_t a = in[0]->shape[0], b = in[1]->shape[0];
  out[0] = new_ints(a + b);
  std::memcpy(ints(out[0]), ints(in[0]), static_cast<size_t>(a) * 8);
  std::memcpy(ints(out[0]) + a, ints(in[1]), static_cast<size_t>(b) * 8);
}

void row(specc_tensor** in, specc_tensor** out, const int64_t*) {
  const int64_t columns = in[0]->shape[1], index = ints(in[1])[0];
  if (index < 0 || index >= in[0]->shape[0]) throw Failure{"row out of range"};
  out[0] = new_floats(1, columns);
  std::memcpy(floats(out[0]), floats(in[0]) + index * columns, static_cast<size_t>(columns) * 4);
}

void cache_copy(specc_tensor** in, specc_tensor**, const int64_t*) {
  if (in[0]->shape[0] > in[1]->shape[0]) throw Failure{"cache_copy out of range"};
  std::memcpy(in[1]->data, in[0]->data, static_cast<size_t>(in[0]->shape[0] * in[0]->shape[1]) * 4);
}

void accept(specc_tensor** in, specc_tensor** out, const int64_t* attrs) {
  const int64_t rows = in[0]->shape[0], columns = in[1]->shape[1];
  const double temperature = *reinterpret_cast<double*>(in[3]->data);
  out[0] = new_ints(rows);
  out[1] = new_ints(1);
  int64_t accepted = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t y =
        tiny::choose(floats(in[1]) + r * columns, attrs[0], temperature, ints(in[4])[0], ints(in[2])[0] + 1 + r);
    if (y < 0) {
      accepted = -1;
      break;
    }
    ints(out[0])[r] = y;
    accepted = r;
    if (r + 1 == rows || ints(in[0])[r + 1] != y) break;
  }
  ints(out[1])[0] = accepted;
}

// ---- leaves ----

// A text is [positions], or [1, positions] where the arena has plans of several lengths.
int64_t positions_of(const specc_tensor* text) { return text->shape[text->ndim - 1]; }

void write_text(specc_tensor* tokens, specc_tensor* at, specc_tensor* text) {
  for (int64_t r = 0; r < tokens->shape[0]; ++r) {
    const int64_t position = ints(at)[r];
    if (position < 0 || position >= positions_of(text)) throw Failure{"position outside of the state"};
    ints(text)[position] = ints(tokens)[r];
  }
}

struct LmJob {
  specc_tensor **in, **out;
  const int64_t* rows;  // where each token was written; null: at its position
};

void lm_row(void* arg, int32_t part) {
  const auto& job = *static_cast<LmJob*>(arg);
  const int64_t position = ints(job.in[1])[part], more = job.rows == nullptr ? 0 : 1;
  const int64_t start = job.rows == nullptr ? 0 : job.rows[part] - position;
  tiny::logits(ints(job.in[2 + more]) + start, static_cast<size_t>(position) + 1, ints(job.in[3 + more])[0] + TINY_SALT,
               floats(job.out[1]) + part * tiny::kVocab);
  floats(job.out[0])[2 * part] = static_cast<float>(position);
  floats(job.out[0])[2 * part + 1] = static_cast<float>(ints(job.in[0])[part]);
}

// tokens, positions, text, salt -> hidden [T, 2], logits [T, V]
void lm(specc_tensor** in, specc_tensor** out, const int64_t*) {
  const int64_t rows = in[0]->shape[0];
  write_text(in[0], in[1], in[2]);
  out[0] = new_floats(rows, 2);
  out[1] = new_floats(rows, tiny::kVocab);
  LmJob job{in, out, nullptr};
  host->parallel(host->pool, static_cast<int32_t>(rows), lm_row, &job);
}

// tokens, positions, rows, texts, salt -> hidden [T, 2], logits [T, V]. Each row of the text that begins at row - position.
void lm_of(specc_tensor** in, specc_tensor** out, const int64_t*) {
  const int64_t rows = in[0]->shape[0];
  write_text(in[0], in[2], in[3]);
  out[0] = new_floats(rows, 2);
  out[1] = new_floats(rows, tiny::kVocab);
  LmJob job{in, out, ints(in[2])};
  host->parallel(host->pool, static_cast<int32_t>(rows), lm_row, &job);
}

void draft_steps(int64_t* text, int64_t size, int64_t n, int64_t k, int64_t salt, int64_t* drafts) {
  float row[tiny::kVocab];
  for (int64_t j = 0; j < k; ++j) {
    if (n + j >= size) throw Failure{"draft outside of the state"};
    if (j > 0) text[n + j] = drafts[j - 1];
    tiny::logits(text, static_cast<size_t>(n + j) + 1, salt, row);
    drafts[j] = tiny::choose(row, tiny::kValid, 0, 0, 0);
    if (drafts[j] < 0) drafts[j] = 0;
  }
}

// previous, root, length, draft text, salt -> drafts. attrs: K. The separate model, right only if its own state is.
void draft(specc_tensor** in, specc_tensor** out, const int64_t* attrs) {
  const int64_t n = ints(in[2])[0];
  ints(in[3])[n > 0 ? n - 1 : 0] = ints(in[0])[0];
  ints(in[3])[n] = ints(in[1])[0];
  out[0] = new_ints(attrs[0]);
  draft_steps(ints(in[3]), in[3]->shape[0], n, attrs[0], ints(in[4])[0], ints(out[0]));
}

// Calls `body` on the text, input `which` of `count`, that begins at the row that the last input says.
template <class Body>
void on_text_of(specc_tensor** in, int which, int count, Body&& body) {
  specc_tensor* whole = in[which];
  specc_tensor text = *whole;
  text.data = reinterpret_cast<char*>(ints(whole) + ints(in[count])[0]);
  in[which] = &text;
  body();
  in[which] = whole;
}

void draft_of(specc_tensor** in, specc_tensor** out, const int64_t* attrs) {
  on_text_of(in, 3, 5, [&] { draft(in, out, attrs); });
}

void draft_write(specc_tensor** in, specc_tensor**, const int64_t*) { write_text(in[0], in[1], in[2]); }

// next tokens, positions, target's text, paired text -> (none). Pair i holds the target's token i and the one after it.
void extend(specc_tensor** in, specc_tensor**, const int64_t*) {
  for (int64_t r = 0; r < in[0]->shape[0]; ++r) {
    const int64_t position = ints(in[1])[r];
    if (position < 0 || position + 1 >= in[3]->shape[0]) throw Failure{"pair outside of the state"};
    ints(in[3])[position] = ints(in[2])[position];
    ints(in[3])[position + 1] = ints(in[0])[r];
  }
}

// next tokens, positions, target's text, paired text, length, salt -> drafts. attrs: K. Extends, then drafts from its
// own text alone. What stands there beyond the root is then of no use: even accepted drafts must be extended over.
void pair_draft(specc_tensor** in, specc_tensor** out, const int64_t* attrs) {
  const int64_t n = ints(in[4])[0], rows = in[0]->shape[0];
  if (rows < 1 || ints(in[1])[rows - 1] != n - 1) throw Failure{"the last pair is not that before the root"};
  if (rows > attrs[0] + 1) throw Failure{"more pairs than a round of this length leaves"};
  extend(in, out, attrs);
  out[0] = new_ints(attrs[0]);
  draft_steps(ints(in[3]), in[3]->shape[0], n, attrs[0], ints(in[5])[0], ints(out[0]));
  for (int64_t j = 1; j < attrs[0]; ++j) ints(in[3])[n + j] = -1;
}

// tap [1, 2], previous, root, length, target's text, salt -> drafts. attrs: K, depth. Refuses another row than that of
// n-1, and drafts in the target's own state, as layer-pruned drafters do. At depth 2 the second draft is wrong.
void tap_draft(specc_tensor** in, specc_tensor** out, const int64_t* attrs) {
  const int64_t n = ints(in[3])[0];
  const bool right =
      static_cast<int64_t>(floats(in[0])[0]) == n - 1 && static_cast<int64_t>(floats(in[0])[1]) == ints(in[1])[0];
  if (n > 0 && !right) throw Failure{"the tap row is not that of the token before the root"};
  ints(in[4])[n] = ints(in[2])[0];
  out[0] = new_ints(attrs[0]);
  draft_steps(ints(in[4]), in[4]->shape[0], n, attrs[0], ints(in[5])[0], ints(out[0]));
  if (attrs[1] == 2 && attrs[0] > 1) ints(out[0])[1] = (ints(out[0])[1] + 1) % 90;
}

// root, length, temperature, seed, text, salt -> drafts, the logits of each, the confidence in each. attrs: K. Draws, in
// the target's state.
void drawn(specc_tensor** in, specc_tensor** out, const int64_t* attrs) {
  const int64_t n = ints(in[1])[0];
  const double temperature = *reinterpret_cast<double*>(in[2]->data);
  int64_t* text = ints(in[4]);
  text[n] = ints(in[0])[0];
  out[0] = new_ints(attrs[0]);
  for (int64_t j = 0; j < attrs[0]; ++j) {
    out[1 + j] = new_floats(1, tiny::kVocab);
    if (j > 0) text[n + j] = ints(out[0])[j - 1];
    tiny::draft_logits(text, static_cast<size_t>(n + j) + 1, ints(in[5])[0], floats(out[1 + j]));
    out[1 + attrs[0] + j] = new_floats(1, 1);
    floats(out[1 + attrs[0] + j])[0] = tiny::confidence(text, static_cast<size_t>(n + j) + 1);
    const int64_t draft = tiny::choose(floats(out[1 + j]), tiny::kValid, temperature, ints(in[3])[0], n + 1 + j);
    ints(out[0])[j] = draft < 0 ? 0 : draft;
  }
}

void tap_draft_of(specc_tensor** in, specc_tensor** out, const int64_t* attrs) {
  on_text_of(in, 4, 6, [&] { tap_draft(in, out, attrs); });
}

void drawn_of(specc_tensor** in, specc_tensor** out, const int64_t* attrs) {
  on_text_of(in, 4, 6, [&] { drawn(in, out, attrs); });
}

void broken(specc_tensor**, specc_tensor**, const int64_t*) { throw Failure{"broken on purpose"}; }

struct Entry {
  const char* name;
  void (*body)(specc_tensor**, specc_tensor**, const int64_t*);
  int32_t n_in, n_out, n_attrs;  // n_out -1: any
};
constexpr Entry kEntries[] = {
    {"specc.positions", positions, 1, 1, 2},
    {"specc.cat", cat2, 2, 1, 0},
    {"specc.row", row, 2, 1, 0},
    {"specc.cache_copy", cache_copy, 2, 0, 0},
    {"specc.accept", accept, 5, 2, 1},
    {"lm", lm, 4, 2, 0},
    {"draft", draft, 5, 1, 1},
    {"draft_write", draft_write, 3, 0, 0},
    {"extend", extend, 4, 0, 0},
    {"pair_draft", pair_draft, 6, 1, 1},
    {"tap_draft", tap_draft, 6, 1, 2},
    {"drawn", drawn, 6, -1, 1},
    {"broken", broken, 0, 1, 0},
    // The same for the text of a batch that begins at the row that the last input says.
    {"specc.rows", rows_of, 2, 1, 0},
    {"lm_of", lm_of, 5, 2, 0},
    {"draft_of", draft_of, 6, 1, 1},
    {"tap_draft_of", tap_draft_of, 7, 1, 2},
    {"drawn_of", drawn_of, 7, -1, 1},
};
constexpr int32_t kCount = sizeof kEntries / sizeof kEntries[0];

int32_t run(int32_t index, specc_tensor** in, int32_t n_in, specc_tensor** out, int32_t n_out, const int64_t* attrs,
            int32_t n_attrs) {
  int32_t result = 0;
  try {
    const Entry& entry = kEntries[index];
    if (n_in != entry.n_in || (entry.n_out >= 0 && n_out != entry.n_out) || n_attrs != entry.n_attrs)
      throw Failure{"wrong number of operands"};
    entry.body(in, out, attrs);
  } catch (const Failure& failure) {
    std::strncpy(message, failure.text, sizeof message - 1);
    for (int32_t i = 0; i < n_out; ++i) {
      if (out[i] != nullptr) release(out[i]);
      out[i] = nullptr;
    }
    result = 1;
  }
  for (int32_t i = 0; i < n_in; ++i) release(in[i]);
  return result;
}
const char* error() { return message; }

}  // namespace

#ifndef TINY_ABI
#define TINY_ABI SPECC_MODEL_ABI
#endif

extern "C" __attribute__((visibility("default"))) const specc_model* specc_model_entry(void) {
  static const char* names[kCount];
  for (int32_t i = 0; i < kCount; ++i) names[i] = kEntries[i].name;
  static const specc_model model = {TINY_ABI, "x86-64", kCount, names, attach, view,
                                    retain,   release,  data,   info,  run,    error};
  return &model;
}
