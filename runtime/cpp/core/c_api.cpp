// specc.h over the engine. Nothing but argument checks and guarded calls lives here.

#include "specc.h"

#include <algorithm>

#include "handles.h"

using namespace specc;

namespace {

const char* finish_name(Finish finish) {
  switch (finish) {
    case Finish::kStop:
      return "stop";
    case Finish::kLength:
      return "length";
    case Finish::kContext:
      return "context";
    default:
      return "";
  }
}

specc_result result_of(Step step) {
  switch (step) {
    case Step::kToken:
      return SPECC_OK;
    case Step::kDone:
      return SPECC_DONE;
    default:
      return SPECC_CANCELLED;
  }
}

[[noreturn]] void no_such_statistic(std::string_view name) {
  throw Error(Code::Option, "there is no such statistic").found(std::string(name));
}

double stat(const Session& session, std::string_view name) {
  const Stats& stats = session.stats();
  const auto number = [](auto value) { return static_cast<double>(value); };
  if (name == "rounds") return number(stats.rounds);
  if (name == "drafts") return number(stats.drafts);
  if (name == "found_drafts") return number(stats.found_drafts);
  if (name == "draft_tokens") return number(stats.draft_tokens);
  if (name == "accepted_tokens") return number(stats.accepted_tokens);
  if (name == "new_tokens") return number(stats.new_tokens);
  if (name == "unread_tokens") return number(session.unread());
  if (name == "prefill_tokens") return number(stats.prefill_tokens);
  if (name == "prefill_s") return stats.prefill_s;
  if (name == "decode_s") return stats.decode_s;
  if (name == "draft_s") return stats.draft_s;
  if (name == "round_s") return stats.round_s;
  if (name == "launches") return number(stats.launches);
  if (name == "host_syncs") return number(stats.host_syncs);
  if (name == "thread_syncs") return number(stats.thread_syncs);
  if (name == "guard_checks") return number(stats.guard_checks);
  if (name == "state_bytes") return number(session.state().plan().bytes);
  if (name == "k_current") return number(session.last_length());
  if (name == "depth_current") return number(session.last_depth());
  if (name == "acceptance_ewma") return session.acceptance_ewma();
  if (name == "cut_mismatch") return number(stats.cut.mismatch);
  if (name == "cut_grammar") return number(stats.cut.grammar);
  if (name == "cut_confidence") return number(stats.cut.confidence);
  if (name == "cut_stop") return number(stats.cut.stop);
  if (name == "cut_length") return number(stats.cut.length);
  no_such_statistic(name);
}

template <class Value>
void set_option(Session& session, const char* name, Value value) {
  session.options().set(name, std::move(value), session.artifact().manifest());
}

// The n best into the caller's arrays; both NULL ask for their number alone.
void copy_best(const int64_t* from_ids, const float* from, size_t n, int64_t* ids, float* logprobs, size_t capacity,
               size_t* count) {
  if (count != nullptr) *count = n;
  if (ids == nullptr && logprobs == nullptr) return;
  if (capacity < n) {
    throw Error(Code::Option, "the logprobs do not fit").where("capacity").expected(std::to_string(n));
  }
  if (ids != nullptr) std::copy_n(from_ids, n, ids);
  if (logprobs != nullptr) std::copy_n(from, n, logprobs);
}

// For statistics by index.
void require_index(size_t index, size_t count) {
  if (index < count) return;
  throw Error(Code::Option, "an index is out of range")
      .expected("less than " + std::to_string(count))
      .found(std::to_string(index));
}

}  // namespace

int32_t specc_interface_version(void) { return SPECC_INTERFACE_VERSION; }
const char* specc_version(void) { return SPECC_VERSION; }
const char* specc_last_error(void) { return last_error(); }

specc_result specc_artifact_load(const char* path, int32_t threads, specc_artifact** out) {
  return guarded([&] {
    require(out, "out");
    *out = nullptr;
    require(path, "path");
    if (threads < 0) throw Error(Code::Option, "the number of threads is negative").where("threads");
    *out = new specc_artifact{Artifact::load(Source::folder(path), threads)};
    return SPECC_OK;
  });
}

specc_result specc_artifact_load_from(const specc_source* source, int32_t threads, specc_artifact** out) {
  return guarded([&] {
    require(out, "out");
    *out = nullptr;
    require(source, "source");
    if (threads < 0) throw Error(Code::Option, "the number of threads is negative").where("threads");
    *out = new specc_artifact{Artifact::load(Source::memory(*source), threads)};
    return SPECC_OK;
  });
}

void specc_artifact_free(specc_artifact* handle) { delete handle; }

const char* specc_artifact_manifest(const specc_artifact* handle) {
  return handle == nullptr ? "" : handle->artifact->manifest().text.c_str();
}

int32_t specc_artifact_threads(const specc_artifact* handle) {
  return handle == nullptr ? 0 : handle->artifact->library().threads();
}

specc_result specc_artifact_use_threads(specc_artifact* handle, int32_t threads) {
  return guarded([&] {
    require(handle, "artifact");
    ModelLibrary& library = handle->artifact->library();
    if (threads < 1 || threads > library.threads()) {
      throw Error(Code::Option, "there are not so many threads")
          .where("threads")
          .expected("1 to " + std::to_string(library.threads()))
          .found(std::to_string(threads));
    }
    library.use_threads(threads);
    return SPECC_OK;
  });
}

specc_result specc_session_open(specc_artifact* handle, specc_session** out) {
  return guarded([&] {
    require(out, "out");
    *out = nullptr;
    require(handle, "artifact");
    *out = new specc_session(handle->artifact);
    return SPECC_OK;
  });
}

void specc_session_close(specc_session* handle) { delete handle; }

specc_result specc_session_set_int(specc_session* handle, const char* name, int64_t value) {
  return guarded([&] {
    require(handle, "session");
    require(name, "name");
    set_option(handle->session, name, value);
    return SPECC_OK;
  });
}

specc_result specc_session_set_float(specc_session* handle, const char* name, double value) {
  return guarded([&] {
    require(handle, "session");
    require(name, "name");
    set_option(handle->session, name, value);
    return SPECC_OK;
  });
}

specc_result specc_session_set_text(specc_session* handle, const char* name, const char* value) {
  return guarded([&] {
    require(handle, "session");
    require(name, "name");
    require(value, "value");
    set_option(handle->session, name, std::string_view(value));
    return SPECC_OK;
  });
}

specc_result specc_session_set_ids(specc_session* handle, const char* name, const int64_t* ids, size_t count) {
  return guarded([&] {
    require(handle, "session");
    require(name, "name");
    if (count > 0) require(ids, "ids");
    set_option(handle->session, name, std::vector<int64_t>(ids, ids + count));
    return SPECC_OK;
  });
}

specc_result specc_session_set_stop_tokens(specc_session* handle, const int64_t* ids, size_t count) {
  return specc_session_set_ids(handle, "stop_token_ids", ids, count);
}

specc_result specc_session_set_logit_bias(specc_session* handle, const int64_t* ids, const float* bias, size_t count) {
  return guarded([&] {
    require(handle, "session");
    if (count > 0) require(ids, "ids");
    if (count > 0) require(bias, "bias");
    std::vector<TokenBias> biases;
    for (size_t i = 0; i < count; ++i) biases.push_back({ids[i], bias[i]});
    handle->session.options().set_logit_bias(std::move(biases), handle->session.artifact().manifest());
    return SPECC_OK;
  });
}

specc_result specc_session_set_mask(specc_session* handle, specc_mask_fn mask, void* user) {
  return guarded([&] {
    require(handle, "session");
    handle->session.set_mask(mask, user);
    return SPECC_OK;
  });
}

specc_result specc_session_logprobs(const specc_session* handle, float* token, int64_t* top_ids, float* top_logprobs,
                                    size_t capacity, size_t* count) {
  return guarded([&] {
    require(handle, "session");
    const Session::Logprobs found = handle->session.logprobs();
    if (token != nullptr) *token = found.token;
    copy_best(found.top_ids, found.top_logprobs, found.count, top_ids, top_logprobs, capacity, count);
    return SPECC_OK;
  });
}

specc_result specc_session_prompt_logprobs(const specc_session* handle, size_t index, float* token, int64_t* rank,
                                           int64_t* top_ids, float* top_logprobs, size_t capacity, size_t* count) {
  return guarded([&] {
    require(handle, "session");
    const PromptScores::Score found = handle->session.prompt_logprobs(index);
    if (token != nullptr) *token = found.logprob;
    if (rank != nullptr) *rank = found.rank;
    copy_best(found.top_ids, found.top_logprobs, found.count, top_ids, top_logprobs, capacity, count);
    return SPECC_OK;
  });
}

specc_result specc_session_set_drafter(specc_session* handle, specc_drafter_fn drafter, void* user) {
  return guarded([&] {
    require(handle, "session");
    handle->session.set_drafter(drafter, user);
    return SPECC_OK;
  });
}

specc_result specc_session_append(specc_session* handle, const int64_t* ids, size_t count) {
  return guarded([&] {
    require(handle, "session");
    return handle->session.append(ids, count) ? SPECC_OK : SPECC_CANCELLED;
  });
}

specc_result specc_session_rewind(specc_session* handle, size_t count) {
  return guarded([&] {
    require(handle, "session");
    handle->session.rewind(count);
    return SPECC_OK;
  });
}

specc_result specc_session_next(specc_session* handle, int64_t* token) {
  return guarded([&] {
    require(handle, "session");
    require(token, "token");
    return result_of(handle->session.next(token));
  });
}

specc_result specc_session_generate(specc_session* handle, int64_t* tokens, size_t capacity, size_t* count) {
  return guarded([&] {
    require(count, "count");
    *count = 0;
    require(handle, "session");
    if (capacity > 0) require(tokens, "tokens");
    specc_result result = SPECC_OK;
    for (; *count < capacity && result == SPECC_OK; *count += result == SPECC_OK) {
      result = result_of(handle->session.next(tokens + *count));
    }
    return result;
  });
}

const char* specc_session_finish_reason(const specc_session* handle) {
  return handle == nullptr ? "" : finish_name(handle->session.finish());
}

void specc_session_cancel(specc_session* handle) {
  if (handle != nullptr) handle->session.cancel();
}

specc_result specc_session_stat(const specc_session* handle, const char* name, double* value) {
  return guarded([&] {
    require(handle, "session");
    require(name, "name");
    require(value, "value");
    *value = stat(handle->session, name);
    return SPECC_OK;
  });
}

specc_result specc_session_stat_position(const specc_session* handle, size_t position, double* drafted,
                                         double* accepted) {
  return guarded([&] {
    require(handle, "session");
    const auto& positions = handle->session.stats().positions;
    require_index(position, positions.size());
    if (drafted != nullptr) *drafted = static_cast<double>(positions[position].drafted);
    if (accepted != nullptr) *accepted = static_cast<double>(positions[position].accepted);
    return SPECC_OK;
  });
}

specc_result specc_session_stat_k(const specc_session* handle, size_t index, double* rounds, double* seconds,
                                  double* tokens) {
  return guarded([&] {
    require(handle, "session");
    const auto& lengths = handle->session.stats().lengths;
    require_index(index, lengths.size());
    if (rounds != nullptr) *rounds = static_cast<double>(lengths[index].rounds);
    if (seconds != nullptr) *seconds = lengths[index].seconds;
    if (tokens != nullptr) *tokens = static_cast<double>(lengths[index].tokens);
    return SPECC_OK;
  });
}

specc_result specc_batch_open(specc_artifact* handle, int32_t texts, specc_batch** out) {
  return guarded([&] {
    require(out, "out");
    *out = nullptr;
    require(handle, "artifact");
    if (texts < 0) throw Error(Code::Option, "the number of texts is negative").where("texts");
    *out = new specc_batch(handle->artifact, static_cast<size_t>(texts));
    return SPECC_OK;
  });
}

void specc_batch_close(specc_batch* handle) { delete handle; }

specc_result specc_batch_session(specc_batch* handle, specc_session** out) {
  return guarded([&] {
    require(out, "out");
    *out = nullptr;
    require(handle, "batch");
    *out = new specc_session(handle->batch.workspace());
    return SPECC_OK;
  });
}

specc_result specc_batch_step(specc_batch* handle, specc_session* const* sessions, size_t count) {
  return guarded([&] {
    require(handle, "batch");
    if (count > 0) require(sessions, "sessions");
    handle->step.clear();
    for (size_t i = 0; i < count; ++i) {
      require(sessions[i], "sessions");
      handle->step.push_back(&sessions[i]->session);
    }
    handle->batch.step(handle->step.data(), count);
    return SPECC_OK;
  });
}

specc_result specc_batch_stat(const specc_batch* handle, const char* name, double* value) {
  return guarded([&] {
    require(handle, "batch");
    require(name, "name");
    require(value, "value");
    const Batch::Counts& counts = handle->batch.counts();
    const std::string_view wanted = name;
    if (wanted == "passes") *value = static_cast<double>(counts.passes);
    else if (wanted == "texts") *value = static_cast<double>(counts.texts);
    else if (wanted == "rows") *value = static_cast<double>(counts.rows);
    else if (wanted == "pass_s") *value = counts.seconds;
    else no_such_statistic(wanted);
    return SPECC_OK;
  });
}

specc_result specc_session_run(specc_session* handle, const char* function, const int64_t* const* inputs,
                               const size_t* counts, size_t n_inputs, void* output, size_t capacity_bytes,
                               size_t* bytes) {
  return guarded([&] {
    require(handle, "session");
    require(function, "function");
    const size_t needed = handle->session.run(function, inputs, counts, n_inputs, output, capacity_bytes);
    if (bytes != nullptr) *bytes = needed;
    if (output != nullptr && needed > capacity_bytes) {
      throw Error(Code::Option, "the output does not fit").where("capacity_bytes").expected(std::to_string(needed));
    }
    return SPECC_OK;
  });
}
