// Times specc::cached_attention: microseconds of one layer by context, rows and dtype of the cache, and how near memory and
// arithmetic limits that is.
//
//   g++ <flags of README.md> bench_attention.cpp tensor.cpp pool.cpp error.cpp cache.cpp attention*.cpp
//       -lpthread -o bench_attention
//   ./bench_attention [threads [repetitions [query heads [kv heads [head size]]]]]
//
// The layers of a model of 30 follow each other, so that no cache is warm when its turn comes again.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "bench_pool.h"
#include "cache.h"
#include "parallel.h"

specc_host specc::host = {nullptr, nullptr, 1};

namespace {

using specc::Tensor;

constexpr int64_t kLayers = 30;
constexpr int64_t kCapacity = 2048;

Tensor* noise(int32_t dtype, int64_t a, int64_t b, int64_t c) {
  const int64_t shape[] = {a, b, c};
  Tensor* x = specc::new_empty(dtype, 3, shape);
  for (int64_t i = 0; i < x->numel(); i++) {
    const int64_t n = i * 7919 % 2048;
    if (dtype == SPECC_F32) {
      x->data<float>()[i] = static_cast<float>(n) / 1024 - 1;
    } else {
      x->data<uint16_t>()[i] = static_cast<uint16_t>(0x3000 + n + (n & 1) * 0x8000);  // f16 of 1/8 to 1/2, both signs
    }
  }
  return x;
}

// On one thread its own time, which other work on the machine disturbs less.
double seconds(int threads) {
  timespec now;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Tensor* counting(int64_t from, int64_t count) {
  Tensor* x = specc::new_empty(SPECC_I64, 1, &count);
  for (int64_t i = 0; i < count; i++) x->data<int64_t>()[i] = from + i;
  return x;
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int threads = argument(1, 1), repetitions = argument(2, 7);
  const int64_t heads = argument(3, 9), kv_heads = argument(4, 3), size = argument(5, 64);
  specc::SpinningPool pool(threads);
  specc::host = {specc::SpinningPool::run, &pool, threads};
  std::printf("%d threads, %ld query and %ld kv heads of %ld; best of %d\n%-5s %8s %5s %9s %7s %9s\n", threads,
              (long)heads, (long)kv_heads, (long)size, repetitions, "cache", "context", "rows", "us", "GB/s", "GFLOP/s");
  for (const int32_t dtype : {SPECC_F32, SPECC_F16}) {
    std::vector<Tensor*> caches;
    for (int64_t i = 0; i < 2 * kLayers; i++) caches.push_back(noise(dtype, kv_heads, kCapacity, size));
    for (const int64_t context : {30, 500, 1500}) {
      for (const int64_t rows : {1, 4, 8, 64}) {
        Tensor *q = noise(SPECC_F32, rows, heads, size), *at = counting(context - 1, rows);
        const specc::Seen seen{*at, *at};
        specc::AttentionOptions options;
        options.scale = 0.125;
        double best = 1e9;
        for (int64_t i = 0; i < kLayers * repetitions; i++) {
          const double start = seconds(threads);
          const Tensor &k = *caches[2 * (i % kLayers)], &v = *caches[2 * (i % kLayers) + 1];
          specc::release(specc::cached_attention(*q, k, v, seen, options));
          best = std::min(best, seconds(threads) - start);
        }
        const double places = static_cast<double>(context) + static_cast<double>(rows - 1) / 2;
        const double bytes = 2.0 * static_cast<double>(kv_heads * size) * places * (dtype == SPECC_F32 ? 4 : 2);
        const double flops = 4.0 * static_cast<double>(rows * heads * size) * places;
        std::printf("%-5s %8ld %5ld %9.1f %7.1f %9.1f\n", dtype == SPECC_F32 ? "f32" : "f16", (long)context, (long)rows,
                    best * 1e6, bytes / best * 1e-9, flops / best * 1e-9);
        specc::release(q);
        specc::release(at);
      }
    }
    for (Tensor* cache : caches) specc::release(cache);
  }
}
