// What this machine can do at most: read bandwidth, fused multiply-adds, integer dot products. Prints JSON.
//
//   g++ -std=c++20 -O3 -march=native -ffp-contract=fast probe.cpp -pthread -o probe && ./probe THREADS MIB
//
// Every figure is the best of several passes: a limit is what can be reached, not what a busy moment leaves.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include <immintrin.h>
#include <sys/mman.h>

namespace {

using Clock = std::chrono::steady_clock;
#if defined(__AVX512F__)
constexpr int kBytes = 64;
#else
constexpr int kBytes = 32;
#endif
typedef float Floats __attribute__((vector_size(kBytes)));
typedef int64_t Words __attribute__((vector_size(kBytes)));

constexpr int kLine = 64;
struct alignas(kLine) Line {
  Words words[kLine / kBytes];
};

std::atomic<int64_t> sink{0};  // keeps results, and so the work, alive

// Best seconds of `passes` in which every thread runs body(thread), all starting together.
template <class Body>
double best_seconds(int threads, int passes, const Body& body) {
  double best = 1e30;
  std::atomic<int> ready{0}, running{0};
  std::atomic<int> pass{-1};
  std::vector<std::thread> others;
  const auto loop = [&](int thread) {
    for (int seen = 0; seen < passes; ++seen) {
      ++ready;
      while (pass < seen) {
      }
      body(thread);
      --running;
    }
  };
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(loop, thread);
  for (int now = 0; now < passes; ++now) {
    while (ready < threads - 1) {
    }
    ready = 0;
    running = threads - 1;
    const auto begin = Clock::now();
    pass = now;
    body(0);
    while (running > 0) {
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (seconds < best) best = seconds;
  }
  for (auto& other : others) other.join();
  return best;
}

// Reads `count` lines as so many streams that go on side by side, each asking for the line `Ahead` lines on. What suits
// a machine best differs: one stream has the hardware's prefetcher run far ahead, several keep more requests in flight.
template <int Streams, int Ahead>
void read(const Line* from, size_t count) {
  const size_t each = count / Streams;
  Line sums[Streams] = {};
  for (size_t i = 0; i < each; ++i) {
#pragma GCC unroll 8
    for (int s = 0; s < Streams; ++s) {
      const Line* line = from + static_cast<size_t>(s) * each + i;
      if (Ahead > 0) __builtin_prefetch(line + Ahead);
#pragma GCC unroll 2
      for (int w = 0; w < kLine / kBytes; ++w) sums[s].words[w] |= line->words[w];
    }
  }
  int64_t all = 0;
  for (const Line& sum : sums)
    for (const Words& word : sum.words) all |= word[0];
  sink += all;
}

// The best of these ways, each several times.
double read_bytes_per_s(int threads, const Line* memory, size_t lines) {
  using Way = void (*)(const Line*, size_t);
  constexpr Way kWays[] = {read<1, 0>, read<1, 64>, read<2, 64>, read<4, 0>, read<4, 64>, read<8, 32>};
  const size_t each = lines / static_cast<size_t>(threads) / 8 * 8;
  double best = 1e30;
  for (int round = 0; round < 3; ++round) {
    for (const Way way : kWays) {
      const double seconds =
          best_seconds(threads, 4, [&](int thread) { way(memory + static_cast<size_t>(thread) * each, each); });
      if (seconds < best) best = seconds;
    }
  }
  return static_cast<double>(each) * threads * kLine / best;
}

// Zero pages are one and the same, so it is written; in huge pages where the system gives them, as it does weights.
const Line* make_memory(size_t lines) {
  constexpr size_t kHuge = size_t{2} << 20;
  const size_t bytes = (lines * sizeof(Line) + kHuge - 1) / kHuge * kHuge;
  void* memory = std::aligned_alloc(kHuge, bytes);
  if (memory == nullptr) std::exit(1);
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  return static_cast<const Line*>(memory);
}

constexpr int kSteps = 2'000'000;
constexpr int kChains = 12;  // hide a multiply-add's latency on two units; with 10, a Zen 4 ran integers at half its speed

// step(chain) for each chain. Written out, for g++ keeps an array in registers only where every index is a constant.
template <class Chain, class Step>
[[gnu::always_inline]] inline void each(Chain (&chains)[kChains], const Step& step) {
  [&]<size_t... i>(std::index_sequence<i...>) __attribute__((always_inline)) { (step(chains[i]), ...); }(std::make_index_sequence<kChains>());
}

double fma_flops(int threads) {
  const double seconds = best_seconds(threads, 8, [](int thread) {
    Floats chains[kChains];
    const float seed = 1.0F + 1e-6F * static_cast<float>(thread + static_cast<int>(sink.load() & 1));
    const Floats by = Floats{} + seed * 0.999F, plus = Floats{} + 1e-3F;
    each(chains, [&](Floats& chain) {
      chain = Floats{} + seed;
      asm volatile("" : "+v"(chain));  // or equal chains would become one
    });
    for (int i = 0; i < kSteps; ++i) each(chains, [&](Floats& chain) { chain = chain * by + plus; });
    each(chains, [&](Floats& chain) { sink += static_cast<int64_t>(chain[0]); });
  });
  return 2.0 * kSteps * kChains * (kBytes / 4.0) * threads / seconds;
}

// Products of unsigned and signed bytes, summed into 32 bits: what an int8 kernel is made of.
#if defined(__AVX512VNNI__)
using Integers = __m512i;
constexpr const char* kIntegerKind = "AVX-512 VNNI";
// As assembly, for g++ 12 wraps the intrinsic into copies.
inline void dot(Integers& sum, Integers a, Integers b) { asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); }
inline Integers splat(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }
#else
using Integers = __m256i;
#if defined(__AVXVNNI__)
constexpr const char* kIntegerKind = "AVX-VNNI";
inline void dot(Integers& sum, Integers a, Integers b) { asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b)); }
#else
constexpr const char* kIntegerKind = "AVX2 maddubs";
inline void dot(Integers& sum, Integers a, Integers b) {
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}
#endif
inline Integers splat(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
#endif

double integer_ops(int threads) {
  const double seconds = best_seconds(threads, 8, [](int thread) {
    Integers chains[kChains], a = splat(thread + 1), b = splat(3);
    each(chains, [&](Integers& chain) { chain = splat(0); });
    for (int i = 0; i < kSteps; ++i) {
      each(chains, [&](Integers& chain) {
        asm volatile("" : "+v"(a));  // or one product would do for all
        dot(chain, a, b);
      });
    }
    each(chains, [&](Integers& chain) { sink += chain[0]; });
  });
  return 2.0 * kSteps * kChains * sizeof(Integers) * threads / seconds;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const size_t mib = argc > 2 ? static_cast<size_t>(std::atoi(argv[2])) : 256;
  const size_t lines = (mib << 20) / sizeof(Line);
  const Line* memory = make_memory(lines);
  std::printf("{\"threads\": %d, \"vector_bytes\": %d, \"integer_kind\": \"%s\", ", threads, kBytes, kIntegerKind);
  std::printf("\"read_1\": %.4g, \"read_n\": %.4g, ", read_bytes_per_s(1, memory, lines),
              read_bytes_per_s(threads, memory, lines));
  std::printf("\"fma_1\": %.4g, \"fma_n\": %.4g, ", fma_flops(1), fma_flops(threads));
  std::printf("\"integer_1\": %.4g, \"integer_n\": %.4g}\n", integer_ops(1), integer_ops(threads));
}
