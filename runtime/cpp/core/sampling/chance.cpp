#include "chance.h"

#include "../../model/choose_part.h"

namespace specc {

int64_t KeyedChance::choose(const Row& row, uint64_t position) {
  const Sampling sampling{row.logits, row.temperature, noise_key(seed_, position)};
  Best best;
  best.offer(sampling.value(row.best), row.best);  // a good first value rules out most of the others
  if (row.kept == nullptr) {
    sample_part(sampling, 0, static_cast<int64_t>(row.vocab_size), best);
  } else {
    for (const int32_t v : *row.kept) best.offer(sampling.value(v), v);
  }
  return best.token;
}

}  // namespace specc
