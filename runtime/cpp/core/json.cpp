#include "json.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "error.h"
#include "utf8.h"

namespace specc {
namespace {

constexpr size_t kMaxText = size_t{128} << 20;
constexpr size_t kMaxValues = size_t{4} << 20;  // a value costs more memory than its text ("[]," is 3 bytes)
constexpr int kMaxDepth = 64;

class Parser {
 public:
  Parser(std::string_view text, const std::string& source) : text_(text), source_(source) {}

  Json document() {
    if (text_.size() > kMaxText) fail("the text is too long");
    Json value = this->value(0);
    skip_space();
    if (at_ != text_.size()) fail("text after the end of the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw Error(Code::Damaged, std::string("invalid JSON: ") + what).where(source_ + ", byte " + std::to_string(at_));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void skip_space() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
      ++at_;
    }
  }

  Json value(int depth) {
    if (depth > kMaxDepth) fail("nested too deeply");
    if (++values_ > kMaxValues) fail("too many values");
    skip_space();
    switch (peek()) {
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case '"':
        return Json(string());
      case 't':
        return word("true", Json(true));
      case 'f':
        return word("false", Json(false));
      case 'n':
        return word("null", Json());
      default:
        return number();
    }
  }

  Json word(std::string_view expected, Json value) {
    if (text_.substr(at_, expected.size()) != expected) fail("unknown word");
    at_ += expected.size();
    return value;
  }

  Json array(int depth) {
    ++at_;  // '['
    Json::Array items;
    skip_space();
    if (take(']')) return Json(std::move(items));
    do {
      items.push_back(value(depth + 1));
      skip_space();
    } while (take(','));
    if (!take(']')) fail("expected ',' or ']'");
    return Json(std::move(items));
  }

  Json object(int depth) {
    ++at_;  // '{'
    Json::Object members;
    skip_space();
    if (take('}')) return Json(std::move(members));
    do {
      skip_space();
      if (peek() != '"') fail("expected a key in quotes");
      std::string key = string();
      skip_space();
      if (!take(':')) fail("expected ':'");
      members.push_back({std::move(key), value(depth + 1)});
      skip_space();
    } while (take(','));
    if (!take('}')) fail("expected ',' or '}'");
    refuse_duplicates(members);
    return Json(std::move(members));
  }

  // Two readers that keep different ones of two equal keys would see two different artifacts.
  void refuse_duplicates(const Json::Object& members) const {
    std::vector<std::string_view> keys;
    keys.reserve(members.size());
    for (const auto& member : members) keys.push_back(member.key);
    std::sort(keys.begin(), keys.end());
    if (std::adjacent_find(keys.begin(), keys.end()) != keys.end()) fail("a key occurs twice in this object");
  }

  Json number() {
    const size_t start = at_;
    take('-');
    if (!take('0') && !digits()) fail("expected a value");
    bool integer = true;
    if (take('.')) {
      integer = false;
      if (!digits()) fail("expected a digit after '.'");
    }
    if (take('e') || take('E')) {
      integer = false;
      if (!take('+')) take('-');
      if (!digits()) fail("expected a digit in the exponent");
    }
    return integer ? Json(convert<int64_t>(start)) : Json(convert<double>(start));
  }

  bool digits() {
    const size_t start = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ > start;
  }

  template <class Number>
  Number convert(size_t start) {
    Number number{};
    const auto result = std::from_chars(text_.data() + start, text_.data() + at_, number);
    if (result.ec != std::errc() || result.ptr != text_.data() + at_) fail("number out of range");
    return number;
  }

  std::string string() {
    ++at_;  // '"'
    std::string out;
    for (;;) {
      if (at_ >= text_.size()) fail("unterminated string");
      const auto c = static_cast<unsigned char>(text_[at_]);
      if (c == '"') break;
      if (c < 0x20) fail("control character in a string");
      if (c == '\\') {
        escape(out);
      } else {
        const size_t length = utf8_length(text_.substr(at_));
        if (length == 0) fail("invalid UTF-8");
        out.append(text_, at_, length);
        at_ += length;
      }
    }
    ++at_;
    return out;
  }

  void escape(std::string& out) {
    static constexpr std::string_view kNames = "\"\\/bfnrt";
    static constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    ++at_;  // '\\'
    const char name = peek();
    if (name == 'u') {
      ++at_;
      append_utf8(out, escaped_code_point());
      return;
    }
    const size_t index = name == '\0' ? std::string_view::npos : kNames.find(name);
    if (index == std::string_view::npos) fail("unknown escape");
    out += kMeanings[index];
    ++at_;
  }

  uint32_t escaped_code_point() {
    const uint32_t first = hex4();
    if (first >= 0xDC00 && first < 0xE000) fail("lone surrogate");
    if (first < 0xD800 || first >= 0xE000) return first;
    if (!take('\\') || !take('u')) fail("lone surrogate");
    const uint32_t second = hex4();
    if (second < 0xDC00 || second >= 0xE000) fail("lone surrogate");
    return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
  }

  uint32_t hex4() {
    if (text_.size() - at_ < 4) fail("unterminated escape");
    uint32_t number = 0;
    const char* begin = text_.data() + at_;
    const auto result = std::from_chars(begin, begin + 4, number, 16);
    if (result.ec != std::errc() || result.ptr != begin + 4) fail("expected four hexadecimal digits");
    at_ += 4;
    return number;
  }

  std::string_view text_;
  const std::string& source_;
  size_t at_ = 0;
  size_t values_ = 0;
};

}  // namespace

Json Json::parse(std::string_view text, const std::string& source) { return Parser(text, source).document(); }

const char* Json::kind() const {
  static constexpr const char* kNames[] = {"null",     "a boolean", "an integer", "a number with a fraction",
                                           "a string", "a list",    "an object"};
  return kNames[value_.index()];
}

}  // namespace specc
