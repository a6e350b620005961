// As much of Java's native interface as examples/android uses, by the names and types of the JDK's own header: arrays are
// strings, and an exception is a text that the player looks at.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>

#define JNIEXPORT __attribute__((visibility("default")))
#define JNICALL

typedef int32_t jint;
typedef int64_t jlong;
typedef signed char jbyte;
typedef jint jsize;

struct _jobject {
  std::string bytes;
};
typedef _jobject* jobject;
typedef jobject jclass;
typedef jobject jbyteArray;

struct JNIEnv {
  std::string thrown;

  jclass FindClass(const char* name) { return new _jobject{name}; }
  jint ThrowNew(jclass kind, const char* text) {
    thrown = kind->bytes + ": " + text;
    return 0;
  }
  jsize GetArrayLength(jbyteArray array) { return static_cast<jsize>(array->bytes.size()); }
  void GetByteArrayRegion(jbyteArray array, jsize start, jsize count, jbyte* to) {
    std::memcpy(to, array->bytes.data() + start, static_cast<size_t>(count));
  }
  jbyteArray NewByteArray(jsize size) { return new _jobject{std::string(static_cast<size_t>(size), '\0')}; }
  void SetByteArrayRegion(jbyteArray array, jsize start, jsize count, const jbyte* from) {
    std::memcpy(&array->bytes[static_cast<size_t>(start)], from, static_cast<size_t>(count));
  }
};
