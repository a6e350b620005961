// Guards: what is written beside a buffer is found, who leaves a zone is stopped, and a text that grows takes its state along.

#include "../../../runtime/cpp/core/engine/state.h"

#include <csignal>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../runtime/cpp/core/artifact.h"
#include "../../../runtime/cpp/core/engine/session.h"
#include "../../../runtime/cpp/core/error.h"
#include "check.h"
#include "tests.h"
#include "tiny_lm.h"

using namespace specc;

namespace {

unsigned char* memory_of(const specc::Artifact& artifact, const State& state, size_t buffer) {
  return static_cast<unsigned char*>(artifact.library().api().data(state.views()[buffer]));
}

int code_of(const State& state) {
  try {
    state.check_guards();
  } catch (const Error& error) {
    return static_cast<int>(error.code());
  }
  return 0;
}

// Writes a byte in a child process; the signal that ended it, or 0.
int signal_of_write(unsigned char* at) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGSEGV, SIG_DFL);  // not the sanitizer's
    *at = 1;
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

void writes_beside_a_buffer_are_found(const specc::Artifact& artifact) {
  const Manifest& manifest = artifact.manifest();
  State state(manifest.state, manifest.arena, artifact.library());
  CHECK(code_of(state) == 0);
  for (size_t buffer = 0; buffer < manifest.state.size(); ++buffer) {
    unsigned char* const begin = memory_of(artifact, state, buffer);
    const auto bytes = static_cast<int64_t>(manifest.state[buffer].bytes_at(state.plan().rows));
    std::memset(begin, 0xFF, static_cast<size_t>(bytes));  // its own rows are its own
    CHECK(code_of(state) == 0);
    for (const int64_t at : {int64_t{-1}, -manifest.arena.canary, bytes, bytes + manifest.arena.canary - 1}) {
      const unsigned char before = begin[at];
      begin[at] = static_cast<unsigned char>(before + 1);
      CHECK_NOTE(code_of(state) == 613, manifest.state[buffer].name + " at " + std::to_string(at));
      begin[at] = before;
      CHECK(code_of(state) == 0);
    }
  }
}

void who_leaves_a_zone_is_stopped(const specc::Artifact& artifact) {
  const Manifest& manifest = artifact.manifest();
  State state(manifest.state, manifest.arena, artifact.library());
  for (const ZoneSpec& zone : state.plan().zones) {
    const Placed& first = zone.buffers.front();
    unsigned char* const base = memory_of(artifact, state, first.buffer) - first.offset;
    for (const int64_t at : {zone.offset - 1, zone.offset - manifest.arena.page, zone.offset + zone.bytes}) {
      CHECK_NOTE(signal_of_write(base + at) == SIGSEGV, zone.name + " at " + std::to_string(at));
    }
    CHECK(signal_of_write(base + zone.offset) == 0);
    CHECK(signal_of_write(base + zone.offset + zone.bytes - 1) == 0);
  }
}

// A session whose state is spoilt gives out no token of the round that was looked at.
void a_session_stops(const std::shared_ptr<specc::Artifact>& artifact) {
  Session session(artifact);
  session.options().set("max_tokens", int64_t{20}, artifact->manifest());
  session.options().set("guard_rounds", int64_t{1}, artifact->manifest());
  const int64_t prompt[] = {1, 2, 3};
  session.append(prompt, 3);
  int64_t token = 0;
  CHECK(session.next(&token) == Step::kToken);
  CHECK(session.stats().guard_checks == session.stats().rounds);
  unsigned char* const begin = memory_of(*artifact, session.state(), 0);
  const unsigned char before = begin[-1];
  begin[-1] = static_cast<unsigned char>(before + 1);
  for (int again = 0; again < 2; ++again) {
    int code = 0;
    try {
      while (session.next(&token) == Step::kToken) {
      }
    } catch (const Error& error) {
      code = static_cast<int>(error.code());
    }
    CHECK(code == 613);
  }
  session.options().set("guard_rounds", int64_t{0}, artifact->manifest());
  CHECK(session.next(&token) == Step::kToken);  // nobody looks
}

// From the plan for short texts to that for long ones, in the middle of a text.
void a_growing_text_takes_its_state_along(const std::shared_ptr<specc::Artifact>& artifact) {
  const size_t context = static_cast<size_t>(artifact->manifest().model.max_model_len);
  Session session(artifact);
  CHECK(session.state().plan().rows == 24);
  std::vector<int64_t> text = {1, 2, 3, 4};
  const auto play = [&](int64_t tokens) {
    session.options().set("max_tokens", tokens, artifact->manifest());
    int64_t token = 0;
    float row[tiny::kVocab];
    for (int64_t i = 0; i < tokens && session.next(&token) == Step::kToken; ++i) {
      tiny::logits(text.data(), text.size(), tiny::kSalt, row);
      CHECK(token == tiny::choose(row, tiny::kValid, 0, 0, 0));
      text.push_back(token);
    }
  };
  session.options().set("max_tokens", int64_t{8}, artifact->manifest());
  session.append(text.data(), text.size());
  play(8);
  CHECK(session.state().plan().rows == 24);
  session.options().set("max_tokens", int64_t{30}, artifact->manifest());
  session.append(nullptr, 0);  // goes on; the new end is over 24
  CHECK(session.state().plan().rows == static_cast<int64_t>(context));
  play(30);

  Session other(artifact);  // max_tokens raised behind an append
  other.options().set("max_tokens", int64_t{4}, artifact->manifest());
  other.append(text.data(), 4);
  other.options().set("max_tokens", int64_t{60}, artifact->manifest());
  int64_t token = 0;
  for (size_t i = 4; i < text.size(); ++i) {
    CHECK(other.next(&token) == Step::kToken);
    CHECK(token == text[i]);
  }
  CHECK(other.state().plan().rows == static_cast<int64_t>(context));
}

}  // namespace

void arena_test(const std::string& folder) {
  for (const std::string kind : {"model", "tap", "short"}) {
    const auto artifact = specc::Artifact::load(specc::Source::folder(folder + "/" + kind), 1);
    writes_beside_a_buffer_are_found(*artifact);
    who_leaves_a_zone_is_stopped(*artifact);
    a_session_stops(artifact);
  }
  a_growing_text_takes_its_state_along(specc::Artifact::load(specc::Source::folder(folder + "/short"), 1));
}
