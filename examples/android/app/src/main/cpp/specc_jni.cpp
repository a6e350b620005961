// What Specc.kt calls: a model that is linked in, its files mapped from a folder, and one text at a time.
#include <fcntl.h>
#include <jni.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "specc.h"

extern "C" {
const struct specc_model* specc_model_entry(void);  // of libmodel.a
extern const char specc_model_build[];
}

namespace {

struct Mapped {
  void* data = MAP_FAILED;
  size_t size = 0;
  explicit Mapped(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat info {};
    if (file >= 0 && fstat(file, &info) == 0) {
      size = static_cast<size_t>(info.st_size);
      data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    }
    if (file >= 0) close(file);
  }
  ~Mapped() {
    if (data != MAP_FAILED) munmap(data, size);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
};

struct Free {
  void operator()(specc_artifact* artifact) const { specc_artifact_free(artifact); }
  void operator()(specc_session* session) const { specc_session_close(session); }
};

struct Model {
  std::string folder;
  std::map<std::string, Mapped> files;  // they outlive what is below
  std::unique_ptr<specc_artifact, Free> artifact;
  std::unique_ptr<specc_session, Free> session;
  std::vector<int64_t> ids;  // of the answer
  size_t given = 0;          // bytes of its text
};

int32_t find(void* user, const char* name, const void** data, size_t* size) {
  auto* model = static_cast<Model*>(user);
  const Mapped& file = model->files.try_emplace(name, model->folder + "/" + name).first->second;
  if (file.data == MAP_FAILED) return 0;
  *data = file.data;
  *size = file.size;
  return 1;
}

// Throws in Kotlin, and returns false, where something failed.
bool is_ok(JNIEnv* env, specc_result result) {
  if (result == SPECC_OK) return true;
  env->ThrowNew(env->FindClass("java/lang/IllegalStateException"), specc_last_error());
  return false;
}

std::string bytes_of(JNIEnv* env, jbyteArray text) {
  std::string copy(static_cast<size_t>(env->GetArrayLength(text)), '\0');
  env->GetByteArrayRegion(text, 0, static_cast<jsize>(copy.size()), reinterpret_cast<jbyte*>(&copy[0]));
  return copy;
}

Model* model_of(jlong handle) { return reinterpret_cast<Model*>(handle); }

}  // namespace

// Strings travel as bytes of UTF-8: what JNI calls UTF is another encoding.
extern "C" {

JNIEXPORT jlong JNICALL Java_dev_specc_Specc_open(JNIEnv* env, jclass, jbyteArray folder, jint threads) {
  auto model = std::make_unique<Model>();
  model->folder = bytes_of(env, folder);
  const specc_source source{sizeof(specc_source), find, model.get(), specc_model_entry, specc_model_build};
  specc_artifact* artifact = nullptr;
  if (!is_ok(env, specc_artifact_load_from(&source, threads, &artifact))) return 0;
  model->artifact.reset(artifact);
  specc_session* session = nullptr;
  if (!is_ok(env, specc_session_open(artifact, &session))) return 0;
  model->session.reset(session);
  return reinterpret_cast<jlong>(model.release());
}

JNIEXPORT void JNICALL Java_dev_specc_Specc_close(JNIEnv*, jclass, jlong handle) { delete model_of(handle); }

// Goes on after what was said before.
JNIEXPORT void JNICALL Java_dev_specc_Specc_start(JNIEnv* env, jclass, jlong handle, jbyteArray prompt, jint most) {
  Model* model = model_of(handle);
  const std::string text = bytes_of(env, prompt);
  size_t count = 0;
  if (!is_ok(env, specc_tokenize(model->artifact.get(), text.data(), text.size(), 1, 1, nullptr, 0, &count))) return;
  std::vector<int64_t> ids(count);
  if (!is_ok(env, specc_tokenize(model->artifact.get(), text.data(), text.size(), 1, 1, ids.data(), count, &count))) return;
  if (!is_ok(env, specc_session_set_int(model->session.get(), "max_tokens", most))) return;
  if (!is_ok(env, specc_session_append(model->session.get(), ids.data(), count))) return;
  model->ids.clear();
  model->given = 0;
}

// What the next token adds to the text, which may be nothing: half a character waits. Null at the end.
JNIEXPORT jbyteArray JNICALL Java_dev_specc_Specc_next(JNIEnv* env, jclass, jlong handle) {
  Model* model = model_of(handle);
  int64_t token = 0;
  const specc_result result = specc_session_next(model->session.get(), &token);
  if (result == SPECC_DONE || !is_ok(env, result)) return nullptr;
  model->ids.push_back(token);
  size_t bytes = 0;
  const specc_artifact* artifact = model->artifact.get();
  const auto text_into = [&](char* text, size_t capacity) {
    return specc_detokenize(artifact, model->ids.data(), model->ids.size(), 1, text, capacity, &bytes);
  };
  if (!is_ok(env, text_into(nullptr, 0))) return nullptr;
  std::string text(bytes, '\0');
  if (!is_ok(env, text_into(&text[0], bytes))) return nullptr;
  while (bytes >= 3 && text.compare(bytes - 3, 3, "\xEF\xBF\xBD") == 0) text.resize(bytes -= 3);
  const size_t from = model->given < bytes ? model->given : bytes;
  const auto size = static_cast<jsize>(bytes - from);
  jbyteArray added = env->NewByteArray(size);
  if (added == nullptr) return nullptr;
  env->SetByteArrayRegion(added, 0, size, reinterpret_cast<const jbyte*>(text.data() + from));
  model->given = bytes;
  return added;
}
}
