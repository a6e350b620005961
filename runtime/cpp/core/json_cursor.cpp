#include "json_cursor.h"

#include "error.h"

namespace specc {

void JsonCursor::fail(const std::string& what, const std::string& expected) const {
  throw Error(Code::Damaged, what).where(path_).expected(expected).cure("compile the artifact again");
}

void JsonCursor::wrong_kind(const char* expected) const {
  throw Error(Code::Damaged, "a field has the wrong kind")
      .where(path_)
      .expected(expected)
      .found(value_->kind())
      .cure("compile the artifact again");
}

std::optional<JsonCursor> JsonCursor::find(const char* key) const {
  const auto* object = value_->object();
  if (object == nullptr) wrong_kind("an object");
  for (const auto& member : *object) {
    if (member.key == key && !member.value.is_null()) return JsonCursor(member.value, path_ + "." + key);
  }
  return std::nullopt;
}

JsonCursor JsonCursor::at(const char* key) const {
  auto found = find(key);
  if (!found) fail(std::string("the field '") + key + "' is missing");
  return *found;
}

std::vector<JsonCursor> JsonCursor::items() const {
  const auto* array = value_->array();
  if (array == nullptr) wrong_kind("a list");
  std::vector<JsonCursor> result;
  result.reserve(array->size());
  for (size_t i = 0; i < array->size(); ++i) {
    result.emplace_back((*array)[i], path_ + "[" + std::to_string(i) + "]");
  }
  return result;
}

std::vector<JsonCursor::Entry> JsonCursor::entries() const {
  const auto* object = value_->object();
  if (object == nullptr) wrong_kind("an object");
  std::vector<Entry> result;
  result.reserve(object->size());
  for (const auto& member : *object) result.push_back({member.key, JsonCursor(member.value, path_ + "." + member.key)});
  return result;
}

bool JsonCursor::boolean() const {
  const bool* value = value_->boolean();
  if (value == nullptr) wrong_kind("a boolean");
  return *value;
}

int64_t JsonCursor::integer(int64_t low, int64_t high) const {
  const int64_t* value = value_->integer();
  if (value == nullptr) wrong_kind("an integer");
  if (*value < low || *value > high) {
    throw Error(Code::Damaged, "a number is out of range")
        .where(path_)
        .expected(std::to_string(low) + " to " + std::to_string(high))
        .found(std::to_string(*value))
        .cure("compile the artifact again");
  }
  return *value;
}

double JsonCursor::number(double low, double high) const {
  if (value_->integer() == nullptr && value_->real() == nullptr) wrong_kind("a number");
  const double value = value_->real() != nullptr ? *value_->real() : static_cast<double>(*value_->integer());
  if (!(value >= low && value <= high)) {
    throw Error(Code::Damaged, "a number is out of range")
        .where(path_)
        .expected(std::to_string(low) + " to " + std::to_string(high))
        .found(std::to_string(value));
  }
  return value;
}

const std::string& JsonCursor::string() const {
  const std::string* value = value_->string();
  if (value == nullptr) wrong_kind("a string");
  return *value;
}

std::vector<int64_t> JsonCursor::integers(int64_t low, int64_t high) const {
  std::vector<int64_t> result;
  for (const auto& item : items()) result.push_back(item.integer(low, high));
  return result;
}

std::vector<std::string> JsonCursor::strings() const {
  std::vector<std::string> result;
  for (const auto& item : items()) result.push_back(item.string());
  return result;
}

}  // namespace specc
