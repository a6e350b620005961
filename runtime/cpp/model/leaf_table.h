// The compiled leaves of an artifact, as the generated leaves.cpp lists them.
#pragma once
#include <cstdint>

#include "specc_model.h"

struct specc_leaf {
  const char* name;
  // As leaf.h defines them. An AtenTensorHandle is a specc_tensor*.
  int32_t (*create)(void** leaf);
  // Nulls the slots of the inputs it takes over; after a failure the caller frees those that are left.
  int32_t (*run)(void* leaf, specc_tensor** in, int n_in, specc_tensor** out, int n_out);
  const char* (*last_error)();
};

extern const specc_leaf specc_leaves[];
extern const int specc_leaf_count;
extern const char specc_isa[];  // "x86-64-v3", "x86-64-v4"
