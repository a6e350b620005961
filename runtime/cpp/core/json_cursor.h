// Reads fields of a JSON document; a failure names the field by its path ("functions.round_2.plan[3].in").
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "json.h"

namespace specc {

class JsonCursor {
 public:
  JsonCursor(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }

  JsonCursor at(const char* key) const;                   // required
  std::optional<JsonCursor> find(const char* key) const;  // absent and null are the same
  std::vector<JsonCursor> items() const;                  // of a list
  struct Entry;
  std::vector<Entry> entries() const;  // of an object

  bool boolean() const;
  int64_t integer(int64_t low = std::numeric_limits<int64_t>::min(),
                  int64_t high = std::numeric_limits<int64_t>::max()) const;
  double number(double low, double high) const;  // an integer will do
  const std::string& string() const;
  std::vector<int64_t> integers(int64_t low, int64_t high) const;
  std::vector<std::string> strings() const;

  // Whether the value is this very text, for fields that are a word or a number.
  bool is_word(const char* word) const { return value_->string() != nullptr && *value_->string() == word; }

  [[noreturn]] void fail(const std::string& what, const std::string& expected = "") const;

 private:
  [[noreturn]] void wrong_kind(const char* expected) const;

  const Json* value_;
  std::string path_;
};

struct JsonCursor::Entry {
  const std::string& key;
  JsonCursor value;
};

}  // namespace specc
