/* The border between the engine (libspecc) and an artifact's compiled functions (model.so).
 *
 * A model library exports `specc_model_entry`, which returns this table, and at most a few more `specc_model_*`. Everything
 * else in it is hidden, so two artifacts, or an artifact and libtorch, never see each other's names.
 * Nothing here throws; no C++ type crosses. Private to specc: embedders use specc.h. */
#ifndef SPECC_MODEL_H
#define SPECC_MODEL_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif

#define SPECC_MODEL_ABI 1u

/* PyTorch's ScalarType numbers, since compiled leaves use them. */
enum { SPECC_U8 = 0, SPECC_I8 = 1, SPECC_I32 = 3, SPECC_I64 = 4, SPECC_F16 = 5, SPECC_F32 = 6, SPECC_F64 = 7, SPECC_BOOL = 11, SPECC_BF16 = 15 };

typedef struct specc_tensor specc_tensor; /* counted reference to a strided view of some storage */

/* What the engine lends to the model. */
typedef struct specc_host {
  /* Runs body(arg, part) for part in [0, parts) and returns when all are done. Parts may run on any thread. */
  void (*parallel)(void* pool, int32_t parts, void (*body)(void* arg, int32_t part), void* arg);
  void* pool;
  int32_t threads; /* upper bound of useful parts */
} specc_host;

typedef struct specc_model {
  uint32_t abi;    /* SPECC_MODEL_ABI, checked before anything below is read */
  const char* isa; /* "x86-64-v3" (avx2), "x86-64-v4" (avx512) */
  int32_t entry_count;
  const char* const* entry_names; /* compiled leaves ("layer_0") and built-in kernels ("specc.accept") */

  /* Called once after load. The host must outlive every later call. 0 on success. */
  int32_t (*attach)(const specc_host* host);

  /* Borrowing view of memory that outlives the tensor. Contiguous. Never fails but for out of memory (NULL). */
  specc_tensor* (*view)(void* data, int32_t dtype, int32_t ndim, const int64_t* shape);
  specc_tensor* (*retain)(specc_tensor*);
  void (*release)(specc_tensor*);
  void* (*data)(specc_tensor*); /* NULL if a device has it and it cannot be fetched; error() has the text */
  int32_t (*info)(specc_tensor*, int32_t* dtype, int32_t* ndim, const int64_t** shape, const int64_t** stride);

  /* Runs one entry. `in` references are consumed, `out` references belong to the caller. `attrs` are the integers of the
   * plan's call (built-in kernels only). 0 on success, else error() holds the text (per thread). */
  int32_t (*run)(int32_t entry, specc_tensor** in, int32_t n_in, specc_tensor** out, int32_t n_out, const int64_t* attrs,
                 int32_t n_attrs);
  const char* (*error)(void);
} specc_model;

const specc_model* specc_model_entry(void);

/* A library whose functions a device may run exports `specc_model_device` as well. All are called under the engine's turn;
 * 0 on success, else error() of the table above has the text, which begins with a code (SPECC-E0608) where it knows one. */
typedef struct specc_device {
  /* Once, after attach. `directory` of the artifact, with a slash at the end. Without success there is no close. */
  int32_t (*open)(const char* directory);
  /* `state` is a view of the state buffer `name` of a session that opens. From now until it is released, what it holds
   * may be on the device: zeros, to begin with. */
  int32_t (*place)(const char* name, specc_tensor* state);
  /* Once, when no tensor is left and nothing runs. */
  void (*close)(void);
} specc_device;

const specc_device* specc_model_device(void);

/* And this, if it wants to know them: `weight` is a view of a weight, whose memory never changes. */
void specc_model_weight(specc_tensor* weight);

/* And these, if what a session holds is one piece of memory on the device too: all states that are placed between the two
 * calls have their views in `memory`, and lie as far from its beginning on the device as there. The end comes after the
 * release of the views. */
int32_t specc_model_arena(const void* memory, int64_t bytes);
void specc_model_arena_end(const void* memory);

#ifdef __cplusplus
}
#endif
#endif
