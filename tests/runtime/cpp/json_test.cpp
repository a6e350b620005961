#include <string>

#include "../../../runtime/cpp/core/json.h"
#include "check.h"
#include "tests.h"
#include "thrown.h"

using specc::Json;

namespace {

int code_of(const std::string& text) {
  return code_thrown([&] { Json::parse(text, "test"); });
}

std::string string_of(const std::string& text) { return *Json::parse(text, "test").string(); }

}  // namespace

void json_test() {
  CHECK_EQ(*Json::parse(" -9223372036854775808 ", "t").integer(), INT64_MIN);
  CHECK_EQ(*Json::parse("9223372036854775807", "t").integer(), INT64_MAX);
  CHECK_EQ(*Json::parse("1e3", "t").real(), 1000.0);
  CHECK_EQ(*Json::parse("-0.5", "t").real(), -0.5);
  CHECK(*Json::parse("true", "t").boolean());
  CHECK(Json::parse("null", "t").is_null());
  CHECK_EQ(Json::parse("[1,[],{}]", "t").array()->size(), 3u);
  CHECK_EQ(Json::parse(R"({"a":1,"b":[2]})", "t").object()->back().key, "b");
  CHECK_EQ(string_of(R"("a\n\"\\\/\u0041\u00e9\u20ac\ud83d\ude00")"), "a\n\"\\/A\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");
  CHECK_EQ(string_of("\"\xE6\x97\xA5\""), "\xE6\x97\xA5");

  const std::string bad[] = {"",
                             " ",
                             "{",
                             "[",
                             "[1",
                             "[1,]",
                             "{\"a\"}",
                             "{\"a\":}",
                             "{\"a\":1,}",
                             "{a:1}",
                             "01",
                             "-",
                             "1.",
                             ".5",
                             "1e",
                             "+1",
                             "tru",
                             "nul",
                             "\"",
                             "\"\\",
                             "\"\\x\"",
                             "\"\\u12\"",
                             "\"\\ud800\"",
                             "\"\\udc00\"",
                             "\"\\ud800\\u0041\"",
                             "\"\n\"",
                             "1 2",
                             "[1 2]",
                             "'a'",
                             "NaN",
                             "Infinity",
                             "9223372036854775808",
                             "1e999",
                             "{\"a\":1,\"a\":2}",
                             std::string("\"\0\"", 3),
                             "\"\xFF\"",
                             "\"\xC0\x80\"",
                             "\"\xED\xA0\x80\"",
                             "\"\xF4\x90\x80\x80\"",
                             "\"\xE2\x82\"",
                             "// c\n1"};
  for (const auto& text : bad) CHECK_NOTE(code_of(text) == 502, text);
  CHECK_EQ(code_of(std::string(100000, '[')), 502);
  std::string deep = "1";
  for (int i = 0; i < 64; ++i) deep = "[" + deep + "]";
  CHECK_EQ(code_of(deep), 0);
  CHECK_EQ(code_of("[" + deep + "]"), 502);

  // Every prefix and every one-byte change of a valid text: refused or read, never a crash.
  const std::string valid = R"({"a":[1,-2.5e3,"x\u00e9",true,null],"b":{"c":"日"}})";
  for (size_t cut = 0; cut < valid.size(); ++cut) CHECK_EQ(code_of(valid.substr(0, cut)), 502);
  for (size_t i = 0; i < valid.size(); ++i) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = valid;
      changed[i] = static_cast<char>(byte);
      code_of(changed);
    }
  }
}
