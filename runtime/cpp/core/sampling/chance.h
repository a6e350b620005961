// What acceptance leaves to chance. The rules ask here, so that a test can answer in every way there is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../../model/noise.h"
#include "law.h"

namespace specc {

// A row after its processors: softmax(logits / temperature) over `kept`, or over all where that is null.
struct Row {
  const float* logits = nullptr;
  size_t vocab_size = 0;
  float highest = 0;
  int64_t best = 0;  // the lowest id that has it
  double temperature = 0;
  const std::vector<int32_t>* kept = nullptr;
};

class Chance {
 public:
  virtual ~Chance() = default;
  // The target's own choice for a position of the text.
  virtual int64_t choose(const Row& row, uint64_t position) = 0;
  // Whether draft j is kept, which has this probability.
  virtual bool happens(double probability, size_t j) = 0;
  // A token of a law: draft number `index`, or what stands in for a draft after row `index`.
  virtual int64_t pick(const Law& law, Purpose purpose, size_t index) = 0;
};

// The noise of noise.h.
class KeyedChance final : public Chance {
 public:
  void begin(int64_t seed, size_t root) { seed_ = static_cast<uint64_t>(seed), root_ = root; }

  // argmax of logit / temperature + gumbel(seed, position, token): what specc.accept chooses.
  int64_t choose(const Row& row, uint64_t position) override;
  // Exactly u < probability.
  bool happens(double probability, size_t j) override { return u(Purpose::kAccept, j) < probability; }
  int64_t pick(const Law& law, Purpose purpose, size_t index) override { return draw(law, u(purpose, index)); }

 private:
  double u(Purpose purpose, size_t index) const { return uniform(noise_bits(noise_key(seed_, purpose, root_, index), 0)); }

  uint64_t seed_ = 0, root_ = 0;
};

}  // namespace specc
