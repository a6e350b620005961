// What the opaque handles of specc.h are.
#pragma once

#include <memory>
#include <vector>

#include "artifact.h"
#include "engine/batch.h"
#include "engine/session.h"
#include "error.h"
#include "specc.h"

struct specc_artifact {
  std::shared_ptr<specc::Artifact> artifact;  // sessions hold it too: the handle may be freed before them
};

struct specc_session {
  template <class Home>  // an artifact, or a batch's workspace
  explicit specc_session(std::shared_ptr<Home> home) : session(std::move(home)) {}
  specc::Session session;
};

struct specc_batch {
  specc_batch(std::shared_ptr<specc::Artifact> artifact, size_t texts) : batch(std::move(artifact), texts) {
    step.reserve(batch.workspace()->texts());
  }
  specc::Batch batch;
  std::vector<specc::Session*> step;  // of the step at hand
};

namespace specc {

// Refuses a null pointer argument, by name.
inline void require(const void* pointer, const char* name) {
  if (pointer == nullptr) throw Error(Code::Option, "an argument is NULL").where(name);
}

}  // namespace specc
