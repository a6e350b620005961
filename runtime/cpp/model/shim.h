// Every function that a compiled leaf may call is defined through this macro, with a trailing return type:
//
//   SPECC_SHIM(aoti_torch_get_dim)(Tensor* tensor, int64_t* dim) -> Status { ... }
//
// The compiler greps for SPECC_SHIM(name) to learn which operators a leaf may use, and names the missing ones.
#pragma once

#define SPECC_SHIM(name) extern "C" auto name
