// Unigram: the segmentation whose scores sum to the most.
#pragma once

#include "model.h"
#include "trie.h"

namespace specc::tok {

class Unigram : public Model {
 public:
  Unigram(Reader& reader, const ModelHeader& header, const Vocabulary& vocabulary);
  void encode(std::string_view piece, std::vector<int64_t>& ids) const override;

 private:
  struct Node {
    size_t begin;  // of the best token that ends here
    uint32_t id;
    bool reached;
    double score;
  };
  std::vector<Node> best_path(std::string_view piece) const;
  void say_unknown(std::string_view text, std::vector<int64_t>& ids) const;

  ModelHeader header_;
  double unknown_score_;
  Array<double> scores_;
  Trie trie_;
};

}  // namespace specc::tok
