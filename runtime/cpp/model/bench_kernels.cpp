// Times specc::linear alone, for every encoding: how much longer M rows take than one, and how near the memory's limit
// one row is.
//
//   g++ <flags of README.md> bench_kernels.cpp tensor.cpp pool.cpp error.cpp encodings.cpp weights*.cpp integers*.cpp
//       linear.cpp -lpthread -o bench_kernels
//   ./bench_kernels [threads [repetitions [ENCODING or all [KERNELS of integers, as in avx2]]]]
//
// Each shape is a chain of enough matrices (96 MB) that none is in cache when its turn comes again. The limit is what the
// same threads reach when they only read such memory; "of FMA" is the share of what fused multiply-adds of floats reach on
// registers alone. Times are the least of all repetitions.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "bench_pool.h"
#include "integers.h"
#include "parallel.h"
#include "simd.h"
#include "weights.h"

specc_host specc::host = {nullptr, nullptr, 1};

namespace {

constexpr int64_t kChainBytes = 96 << 20;

struct Chain {
  const specc::Encoding* encoding;
  int64_t depth, columns;
  std::vector<specc::Tensor*> weights;
};

specc::Tensor* make_matrix(const specc::Encoding& encoding, int64_t depth, int64_t columns) {
  const int64_t tiles = columns / specc::kTileColumns;
  if (encoding.quantised()) {  // of ordinary scales, whatever bytes are scales
    const int64_t shape[] = {tiles, encoding.tile_bytes(depth)};
    specc::Tensor* w = specc::new_empty(SPECC_U8, 2, shape);
    for (int64_t t = 0; t < tiles; t++) {
      uint8_t* tile = w->data<uint8_t>() + t * shape[1];
      for (int64_t i = 0; i < shape[1]; i++) tile[i] = static_cast<uint8_t>(0x20 + i * 37 % 23);
    }
    return w;
  }
  const int64_t shape[] = {tiles, depth, specc::kTileColumns};
  specc::Tensor* w = specc::new_empty(encoding.bits == 32 ? SPECC_F32 : SPECC_BF16, 3, shape);
  for (int64_t i = 0; i < depth * columns; i++) {
    if (encoding.bits == 32) {
      w->data<float>()[i] = static_cast<float>(i % 97) * 0.01f - 0.5f;
    } else {
      w->data<uint16_t>()[i] = static_cast<uint16_t>(0x3c00 + i % 97);
    }
  }
  return w;
}

Chain make_chain(const specc::Encoding& encoding, int64_t depth, int64_t columns) {
  Chain chain{&encoding, depth, columns, {}};
  const int64_t bytes = encoding.tile_bytes(depth) * columns / specc::kTileColumns;
  for (int64_t total = 0; total < kChainBytes; total += bytes) {
    chain.weights.push_back(make_matrix(encoding, depth, columns));
  }
  return chain;
}

// Of one thread its own time, so that a machine with other work to do disturbs less.
double now() {
  timespec time;
  clock_gettime(specc::host.threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class Body>
double seconds_of(const Body& body) {
  const double start = now();
  body();
  return now() - start;
}

double seconds_for(const Chain& chain, int64_t rows) {
  const int64_t shape[] = {rows, chain.depth};
  specc::Tensor* x = specc::new_empty(SPECC_F32, 2, shape);
  for (int64_t i = 0; i < x->numel(); i++) x->data<float>()[i] = static_cast<float>(i % 31) * 0.03f - 0.4f;
  const double seconds = seconds_of([&] {
    for (specc::Tensor* w : chain.weights) {
      specc::release(specc::linear(*x, *w, nullptr, chain.columns, chain.encoding));
    }
  });
  specc::release(x);
  return seconds;
}

// Every line of the memory is read once, by all threads, each in four streams.
double seconds_to_read(const std::vector<int64_t>& memory, int threads, std::atomic<int64_t>& sink) {
  using Line = specc::VectorOf<int64_t, 8>::unaligned;
  return seconds_of([&] {
    specc::parallel(threads, [&](int32_t part) {
      const specc::Share mine = specc::share(static_cast<int64_t>(memory.size()) / 32, part, threads);
      const Line* from = reinterpret_cast<const Line*>(memory.data()) + mine.begin * 4;
      const int64_t count = mine.end - mine.begin;
      specc::Vector<int64_t, 8> sums[4] = {};
      for (int64_t i = 0; i < count; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
          __builtin_prefetch(from + j * count + i + 64);
          sums[j] += from[j * count + i];
        }
      }
      int64_t total = 0;
      for (const auto& sum : sums) total += sum[0] ^ sum[5];
      sink += total;
    });
  });
}

// Operations a second of one thread's fused multiply-adds, on registers alone.
double multiplying() {
  constexpr int kChains = 12, kTimes = 20000;
  volatile float half = 0.5f;
  const specc::NativeF a = specc::NativeF{} + half;
  specc::NativeF sums[kChains], all = {};
  for (int c = 0; c < kChains; c++) sums[c] = a * static_cast<float>(c);  // else they are one
  const double seconds = seconds_of([&] {
    for (int i = 0; i < kTimes; i++) {
#pragma GCC unroll 12
      for (int c = 0; c < kChains; c++) sums[c] = sums[c] * a + a;
    }
  });
  for (const specc::NativeF& sum : sums) all += sum;
  half = all[0];
  return 2.0 * kTimes * kChains * specc::kNativeLanes / seconds;
}

const specc::IntegerKernels* kernels_called(const char* name) {
  for (int i = 0; i < specc::kIntegerKernelsCount; i++) {
    if (std::strcmp(specc::kIntegerKernels[i]->name, name) == 0) return specc::kIntegerKernels[i];
  }
  std::fprintf(stderr, "there are no kernels %s\n", name);
  std::exit(2);
}

void bench(const specc::Encoding& encoding, int64_t depth, int64_t columns, int threads, int repetitions) {
  constexpr int64_t kRowCounts[] = {1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256};
  constexpr int kCounts = sizeof kRowCounts / sizeof kRowCounts[0];
  const Chain chain = make_chain(encoding, depth, columns);
  const std::vector<int64_t> memory(kChainBytes / 8, 3);
  std::atomic<int64_t> sink = 0;
  const double matrices = static_cast<double>(chain.weights.size());
  const double elements = static_cast<double>(depth * columns) * matrices;
  const double bytes = static_cast<double>(encoding.tile_bytes(depth) * columns / specc::kTileColumns) * matrices;
  double best[kCounts], reading = 1e9, peak = 0;
  std::fill(best, best + kCounts, 1e9);
  // Interleaved, so that a slow moment of the machine hits all row counts alike.
  for (int repetition = 0; repetition < repetitions; repetition++) {
    reading = std::min(reading, seconds_to_read(memory, threads, sink));
    peak = std::max(peak, multiplying() * threads);
    for (int i = 0; i < kCounts; i++) best[i] = std::min(best[i], seconds_for(chain, kRowCounts[i]));
  }
  const double limit = static_cast<double>(kChainBytes) / reading;
  for (int i = 0; i < kCounts; i++) {
    const double operations = 2 * elements * static_cast<double>(kRowCounts[i]) / best[i];
    std::printf("%-8s %5ldx%-6ld %4ld %9.1f %8.2f %7.1f %7.0f%% %9.1f %6.0f%%\n", encoding.name, (long)depth, (long)columns,
                (long)kRowCounts[i], best[i] / matrices * 1e6, best[i] / best[0], bytes / best[i] * 1e-9,
                bytes / best[i] / limit * 100, operations * 1e-9, operations / peak * 100);
  }
  for (specc::Tensor* w : chain.weights) specc::release(w);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 7;
  const char* chosen = argc > 3 ? argv[3] : "all";
  if (argc > 4) specc::integer_kernels = kernels_called(argv[4]);
  specc::SpinningPool pool(threads);
  specc::host = {specc::SpinningPool::run, &pool, threads};
  const int64_t shapes[][2] = {{576, 960}, {576, 3072}, {1536, 576}, {576, 49152}};
  std::printf("%d threads; least of %d; integers by %s\n%-8s %-12s %4s %9s %8s %7s %8s %9s %7s\n", threads, repetitions,
              specc::integer_kernels->name, "", "KxN", "M", "us", "t/t(1)", "GB/s", "of limit", "GFLOP/s", "of FMA");
  for (const char* name : {"f32", "bf16", "q8", "q8g32", "q4g32", "q4g128", "q4mg32"}) {
    if (std::strcmp(chosen, "all") != 0 && std::strcmp(chosen, name) != 0) continue;
    for (const auto& shape : shapes) bench(*specc::find_encoding(name), shape[0], shape[1], threads, repetitions);
  }
}
