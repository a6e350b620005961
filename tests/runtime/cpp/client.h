// A session through specc.h as an embedder uses it, and the plain decoding it must equal.
#pragma once

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "specc.h"
#include "tiny_lm.h"

using Tokens = std::vector<int64_t>;

struct Settings {
  size_t max_tokens = 20;
  double temperature = 0;
  int64_t seed = 0, k = -1, depth = -1;
  Tokens stop;
};

class Artifact {
 public:
  explicit Artifact(const std::string& path, int32_t threads = 1) {
    if (specc_artifact_load(path.c_str(), threads, &handle_) != SPECC_OK) throw std::runtime_error(specc_last_error());
  }
  ~Artifact() { specc_artifact_free(handle_); }
  Artifact(const Artifact&) = delete;
  Artifact& operator=(const Artifact&) = delete;
  specc_artifact* get() const { return handle_; }

 private:
  specc_artifact* handle_ = nullptr;
};

class Client {
 public:
  using Drafter = std::function<Tokens(const Tokens& committed, size_t k)>;

  explicit Client(const Artifact& artifact) {
    if (specc_session_open(artifact.get(), &handle_) != SPECC_OK) throw std::runtime_error(specc_last_error());
  }
  explicit Client(specc_batch* batch) {
    if (specc_batch_session(batch, &handle_) != SPECC_OK) throw std::runtime_error(specc_last_error());
  }
  ~Client() { specc_session_close(handle_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  specc_session* get() const { return handle_; }

  void set(const Settings& settings) {
    must(specc_session_set_int(handle_, "max_tokens", static_cast<int64_t>(settings.max_tokens)));
    must(specc_session_set_int(handle_, "num_speculative_tokens", settings.k));
    must(specc_session_set_int(handle_, "draft_depth", settings.depth));
    must(specc_session_set_int(handle_, "seed", settings.seed));
    must(specc_session_set_float(handle_, "temperature", settings.temperature));
    must(specc_session_set_stop_tokens(handle_, settings.stop.data(), settings.stop.size()));
  }
  void set_drafter(Drafter drafter) {
    drafter_ = std::move(drafter);
    must(specc_session_set_drafter(handle_, &Client::call_drafter, this));
  }
  specc_result append(const Tokens& ids) { return specc_session_append(handle_, ids.data(), ids.size()); }
  void rewind(size_t count) { must(specc_session_rewind(handle_, count)); }

  // Tokens until the end, a failure or `limit`; the last result is in `result`.
  Tokens generate(size_t limit = 100000) {
    Tokens tokens;
    int64_t some[3];  // less than some rounds give
    size_t count = 0;
    do {
      result = specc_session_generate(handle_, some, std::min<size_t>(3, limit - tokens.size()), &count);
      tokens.insert(tokens.end(), some, some + count);
    } while (result == SPECC_OK && tokens.size() < limit);
    return tokens;
  }
  std::string finish() const { return specc_session_finish_reason(handle_); }
  double stat(const char* name) const {
    double value = -1;
    must(specc_session_stat(handle_, name, &value));
    return value;
  }

  specc_result result = SPECC_OK;

 private:
  static void must(specc_result code) {
    if (code != SPECC_OK) throw std::runtime_error(specc_last_error());
  }
  static size_t call_drafter(void* user, const int64_t* committed, size_t count, size_t k, int64_t* draft) {
    const Tokens proposed = static_cast<Client*>(user)->drafter_(Tokens(committed, committed + count), k);
    for (size_t i = 0; i < proposed.size() && i < k; ++i) draft[i] = proposed[i];
    return proposed.size();
  }

  specc_session* handle_ = nullptr;
  Drafter drafter_;
};

struct Plain {
  Tokens tokens;
  std::string finish;
};

// One token after another with the model itself: no state, no rounds, no engine.
inline Plain plain(Tokens text, const Settings& settings, size_t max_len, const Tokens& eos = {}) {
  Plain out;
  const auto among = [](const Tokens& ids, int64_t id) {
    for (const int64_t each : ids) {
      if (each == id) return true;
    }
    return false;
  };
  float row[tiny::kVocab];
  while (true) {
    if (out.tokens.size() == settings.max_tokens) return {out.tokens, "length"};
    if (text.size() == max_len) return {out.tokens, "context"};
    tiny::logits(text.data(), text.size(), tiny::kSalt, row);
    const int64_t token =
        tiny::choose(row, tiny::kValid, settings.temperature, settings.seed, static_cast<int64_t>(text.size()));
    if (among(settings.stop, token)) return {out.tokens, "stop"};
    text.push_back(token);
    out.tokens.push_back(token);
    if (among(eos, token)) return {out.tokens, "stop"};
  }
}

inline Tokens prompt_of(size_t count, int64_t variety = 0) {
  Tokens prompt;
  for (size_t i = 0; i < count; ++i) prompt.push_back(static_cast<int64_t>((i * 7 + i * i) % 11) + variety);
  return prompt;
}

inline Tokens joined(Tokens left, const Tokens& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}
