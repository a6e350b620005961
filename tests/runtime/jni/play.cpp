// In Kotlin's place: play FOLDER PROMPT MAX_TOKENS prints the answer, or what was thrown.
#include <cstdio>
#include <cstdlib>

#include "jni.h"

extern "C" {
jlong Java_dev_specc_Specc_open(JNIEnv*, jclass, jbyteArray, jint);
void Java_dev_specc_Specc_close(JNIEnv*, jclass, jlong);
void Java_dev_specc_Specc_start(JNIEnv*, jclass, jlong, jbyteArray, jint);
jbyteArray Java_dev_specc_Specc_next(JNIEnv*, jclass, jlong);
}

int main(int, char** arguments) {
  JNIEnv env;
  _jobject folder{arguments[1]}, prompt{arguments[2]};
  const jlong model = Java_dev_specc_Specc_open(&env, nullptr, &folder, 1);
  if (model != 0) {
    Java_dev_specc_Specc_start(&env, nullptr, model, &prompt, std::atoi(arguments[3]));
    while (jbyteArray piece = Java_dev_specc_Specc_next(&env, nullptr, model)) {
      std::fwrite(piece->bytes.data(), 1, piece->bytes.size(), stdout);
    }
    Java_dev_specc_Specc_close(&env, nullptr, model);
  }
  std::fputs(env.thrown.c_str(), stdout);
}
