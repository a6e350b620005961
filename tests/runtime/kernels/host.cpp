// A stand-in for the engine's thread pool: a thread for each part.
#include <thread>
#include <vector>

#include "specc_model.h"

extern "C" void spawn_parts(void*, int32_t parts, void (*body)(void*, int32_t), void* arg) {
  std::vector<std::thread> threads;
  for (int32_t part = 1; part < parts; part++) threads.emplace_back(body, arg, part);
  body(arg, 0);
  for (std::thread& thread : threads) thread.join();
}
