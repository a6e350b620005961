#include <fstream>
#include <string>

#include "../../../runtime/cpp/core/mapped_file.h"
#include "../../../runtime/cpp/core/safetensors.h"
#include "../../../runtime/cpp/core/sha256.h"
#include "check.h"
#include "tests.h"
#include "thrown.h"

using namespace specc;

namespace {

std::string with_header(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

void write(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

}  // namespace

void files_test(const std::string& folder) {
  CHECK_EQ(sha256_hex(nullptr, 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const std::string message(119, 'a');  // a length that needs a second block of padding
  CHECK_EQ(sha256_hex(reinterpret_cast<const unsigned char*>(message.data()), message.size()),
           "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb");

  for (const char* good : {"a", "a/b.c", "lib/x.so", "..a/b"}) CHECK(is_inner_path(good));
  for (const char* bad : {"", "/", "/a", "..", "a/..", "a/../b", "./a", "a//b", "a/", "a\\b"})
    CHECK(!is_inner_path(bad));
  CHECK(!is_inner_path(std::string_view("a\0b", 3)));

  const std::string path = folder + "/w.safetensors";
  const auto code = [&](const std::string& bytes) {
    write(path, bytes);
    return code_thrown([&] { Safetensors file(MappedFile(path), path); });
  };
  const std::string header =
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"I64","shape":[],"data_offsets":[8,16]}})";
  const std::string good = with_header(header, std::string("\0\0\x80\x3f\0\0\0\x40", 8) + std::string(8, '\1'));
  CHECK_EQ(code(good), 0);
  const Safetensors file(MappedFile(path), path);
  CHECK_EQ(file.count(), 2u);
  CHECK(file.find("c") == nullptr);
  CHECK_EQ(static_cast<const float*>(file.data(*file.find("a")))[0], 1.0f);

  // Cut anywhere: refused, never read past the end.
  for (size_t size = 0; size < good.size(); ++size) CHECK(code(good.substr(0, size)) != 0);
  const auto tensor = [](const char* dtype, const char* shape, const char* offsets) {
    return with_header(
        std::string("{\"a\":{\"dtype\":\"") + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}",
        std::string(16, '\0'));
  };
  CHECK_EQ(code(tensor("F32", "[4]", "[0,16]")), 0);
  CHECK_EQ(code(tensor("F32", "[0]", "[0,0]")), 0);
  for (const auto& bad :
       {tensor("F32", "[5]", "[0,16]"), tensor("F32", "[4]", "[16,0]"), tensor("F32", "[4]", "[8,24]"),
        tensor("F99", "[4]", "[0,16]"), tensor("F32", "[-4]", "[0,16]"), tensor("F32", "4", "[0,16]"),
        tensor("F32", "[4]", "[0]"), tensor("F32", "[4]", "[0,9223372036854775807]"), tensor("F32", "[4]", "[-16,0]"),
        tensor("F32", "[4294967296,4294967296]", "[0,0]"), tensor("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"),
        tensor("F32", "[4.0]", "[0,16]")}) {
    CHECK(code(bad) != 0);
  }
  const std::string overlapping =
      R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})";
  CHECK(code(with_header(overlapping, std::string(16, '\0'))) != 0);
  CHECK(code(std::string(8, '\xFF') + "{}") != 0);
  CHECK(code(with_header("[]", "")) != 0);
  CHECK_EQ(code_thrown([&] { MappedFile(folder + "/absent"); }), 505);
  CHECK_EQ(code_thrown([&] { MappedFile(folder.c_str()); }), 505);
}
