// The four normalization forms of Unicode (annex 15), from tables in the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "charmap.h"
#include "reader.h"

namespace specc::tok {

enum class Form : uint32_t { kNfc, kNfd, kNfkc, kNfkd };

class UnicodeForms {
 public:
  explicit UnicodeForms(Reader reader);
  std::string normalize(std::string_view text, Form form) const;

 private:
  struct Unit {
    uint32_t point;
    uint32_t klass;  // canonical combining class
  };
  void decompose(std::vector<Unit>& out, uint32_t c, bool compatible) const;
  uint32_t klass(uint32_t c) const;
  uint32_t compose(uint32_t first, uint32_t second) const;
  void compose_all(std::vector<Unit>& units) const;

  CharMap canonical_;
  CharMap compatible_;
  Array<uint32_t> marks_;
  Array<uint8_t> classes_;
  Array<uint32_t> pairs_;  // first, second, composed; ascending
};

}  // namespace specc::tok
