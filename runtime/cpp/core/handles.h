// What the opaque handles of specc.h are.
#pragma once

#include <memory>

#include "artifact.h"
#include "engine/session.h"
#include "error.h"
#include "specc.h"

struct specc_artifact {
  std::shared_ptr<specc::Artifact> artifact;  // sessions hold it too: the handle may be freed before them
};

struct specc_session {
  explicit specc_session(std::shared_ptr<specc::Artifact> artifact) : session(std::move(artifact)) {}
  specc::Session session;
};

namespace specc {

// Refuses a null pointer argument, by name.
inline void require(const void* pointer, const char* name) {
  if (pointer == nullptr) throw Error(Code::Option, "an argument is NULL").where(name);
}

}  // namespace specc
