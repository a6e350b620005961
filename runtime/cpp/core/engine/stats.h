// Counters of one session since its last append.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace specc {

struct PositionStats {
  uint64_t drafted = 0, accepted = 0;
};

struct LengthStats {
  uint64_t rounds = 0, tokens = 0;
  double seconds = 0;
};

// Why drafts were not kept: once for each round that lost some, by what came first.
struct CutStats {
  uint64_t mismatch = 0, grammar = 0, confidence = 0, stop = 0, length = 0;
};

struct Stats {
  uint64_t rounds = 0, drafts = 0, found_drafts = 0, draft_tokens = 0, accepted_tokens = 0, new_tokens = 0, prefill_tokens = 0;
  uint64_t launches = 0, host_syncs = 0, thread_syncs = 0;  // of rounds
  uint64_t guard_checks = 0;
  double prefill_s = 0, decode_s = 0, draft_s = 0, round_s = 0;
  CutStats cut;
  std::vector<PositionStats> positions;  // by block position
  std::vector<LengthStats> lengths;      // by index of the draft length

  Stats(size_t n_positions, size_t n_lengths) : positions(n_positions), lengths(n_lengths) {}

  void reset() { *this = Stats(positions.size(), lengths.size()); }
};

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

}  // namespace specc
