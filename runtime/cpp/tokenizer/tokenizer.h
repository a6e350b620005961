// Text <-> token ids, from the tables of a compiled `tokenizer.bin`. Same ids and text as Hugging Face `tokenizers`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace specc {

// Immutable after load: any number of threads may encode and decode at once.
class Tokenizer {
 public:
  // `file`: what tokenizer.bin holds. Throws std::runtime_error if it is damaged, or of another version.
  static std::unique_ptr<Tokenizer> load(std::string_view file);
  ~Tokenizer();

  // Bytes that are not UTF-8 become U+FFFD, one for each maximal wrong part, as Python's errors="replace" does.
  // add_special: put the ids of the template (BOS, ...) around the text.
  // parse_special: find special tokens written out in the text; otherwise they are plain text. Added tokens that are
  // not special are always found. Throws std::runtime_error if the text holds a character that the model cannot say.
  std::vector<int64_t> encode(std::string_view text, bool add_special, bool parse_special) const;

  // Ids outside the vocabulary say nothing. The result is valid UTF-8: a character whose bytes are not all there
  // (yet) becomes U+FFFD, so a stream should hold text back until the last character is whole.
  std::string decode(const int64_t* ids, size_t count, bool skip_special) const;

  // One more than the largest id.
  size_t size() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace specc
