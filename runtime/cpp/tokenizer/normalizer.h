// The normalizer: operations on the text before it is split.
#pragma once

#include <string>
#include <vector>

#include "charmap.h"
#include "charset.h"
#include "regex.h"
#include "unicode_forms.h"

namespace specc::tok {

// What stages refer to by number.
struct Shared {
  explicit Shared(const File& file);
  std::vector<CharSet> sets;
  std::vector<Regex> regexes;
};

// All matches of `regex` replaced. `first_end`, if given, gets the end of a match at the very beginning (else 0).
std::string replace_all(std::string_view text, const Regex& regex, const std::string& with, size_t* first_end = nullptr);
std::string replace_all(std::string_view text, const std::string& what, const std::string& with);

class Normalizer {
 public:
  Normalizer(Reader reader, const Shared& shared, UnicodeForms forms);
  // `at_origin`: whether the first character is the first of the whole input; stays true only if that is still so.
  void apply(std::string& text, bool& at_origin) const;

 private:
  struct Operation {
    uint32_t kind;
    Form form = Form::kNfc;
    std::string what, with;
    const Regex* regex = nullptr;
    bool left = false, right = false;
    const CharSet* spaces = nullptr;
    CharMap map;
  };
  static Operation read(Reader& reader, const Shared& shared);
  static void replace(const Operation& op, std::string& text, bool& at_origin);
  static void strip(const Operation& op, std::string& text, bool& at_origin);
  static void map(const Operation& op, std::string& text, bool& at_origin);

  std::vector<Operation> operations_;
  UnicodeForms forms_;
};

}  // namespace specc::tok
