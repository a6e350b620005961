#include "reader.h"

#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "utf8.h"

namespace specc::tok {

namespace {

constexpr uint32_t kVersion = 1;
constexpr size_t kHeader = 32;
constexpr size_t kRow = 24;

// CRC-32 (zlib's), eight bytes at a time.
uint32_t crc32(const uint8_t* data, size_t size) {
  static const auto tables = [] {
    std::array<std::array<uint32_t, 256>, 8> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = (c & 1) ? 0xEDB88320u ^ (c >> 1) : c >> 1;
      t[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; ++i)
      for (size_t k = 1; k < 8; ++k) t[k][i] = t[0][t[k - 1][i] & 0xFF] ^ (t[k - 1][i] >> 8);
    return t;
  }();
  uint32_t crc = 0xFFFFFFFFu;
  for (; size >= 8; data += 8, size -= 8) {
    uint32_t low, high;
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + 4, 4);
    low ^= crc;
    crc = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^
          tables[4][low >> 24] ^ tables[3][high & 0xFF] ^ tables[2][high >> 8 & 0xFF] ^
          tables[1][high >> 16 & 0xFF] ^ tables[0][high >> 24];
  }
  for (; size > 0; ++data, --size) crc = tables[0][(crc ^ *data) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

template <typename T>
T at(const uint8_t* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

}  // namespace

void damaged(const char* what) {
  throw std::runtime_error(std::string("tokenizer.bin is damaged: ") + what);
}

const uint8_t* Reader::take(size_t bytes) {
  if (bytes > size_ - at_) damaged("a section ends early");
  const uint8_t* result = begin_ + at_;
  at_ += bytes;
  return result;
}

void Reader::align(size_t to) { take((to - at_ % to) % to); }

uint32_t Reader::u32() { return at<uint32_t>(take(4)); }

double Reader::f64() {
  align(8);
  return at<double>(take(8));
}

std::string Reader::text() {
  const uint32_t size = u32();
  const char* data = reinterpret_cast<const char*>(take(size));
  align(4);
  std::string result(data, size);
  if (!is_utf8(result)) damaged("a text is not UTF-8");
  return result;
}

uint32_t Reader::below(uint32_t limit, const char* what) {
  const uint32_t value = u32();
  if (value >= limit) damaged(what);
  return value;
}

uint32_t Reader::below_or_none(uint32_t limit, const char* what) {
  const uint32_t value = u32();
  if (value != kNone && value >= limit) damaged(what);
  return value;
}

template <typename T>
Array<T> Reader::array() {
  const size_t count = u32();
  align(8);
  const uint8_t* data = take(count * sizeof(T));
  align(8);
  return {reinterpret_cast<const T*>(data), count};
}

template Array<uint8_t> Reader::array();
template Array<uint32_t> Reader::array();
template Array<double> Reader::array();

void Reader::finish() const {
  if (at_ != size_) damaged("a section is too long");
}

File::File(std::string_view content) : size_(content.size()) {
  if (size_ < kHeader || size_ % 8 != 0) damaged("its size is wrong");
  words_.resize(size_ / 8);
  std::memcpy(words_.data(), content.data(), size_);

  const auto* bytes = reinterpret_cast<const uint8_t*>(words_.data());
  if (std::memcmp(bytes, "SPECCTOK", 8) != 0) damaged("it is not a tokenizer");
  if (at<uint32_t>(bytes + 8) != kVersion)
    throw std::runtime_error("tokenizer.bin is of version " + std::to_string(at<uint32_t>(bytes + 8)) +
                             ", this runtime reads version " + std::to_string(kVersion));
  if (at<uint64_t>(bytes + 16) != size_) damaged("its size is wrong");
  if (at<uint32_t>(bytes + 12) != crc32(bytes + 16, size_ - 16)) damaged("its checksum is wrong");
  if (at<uint32_t>(bytes + 24) > (size_ - kHeader) / kRow) damaged("its table of sections is too long");
}

Reader File::section(const char* name) const {
  const auto* bytes = reinterpret_cast<const uint8_t*>(words_.data());
  const uint32_t count = at<uint32_t>(bytes + 24);
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t* row = bytes + kHeader + kRow * i;
    if (std::memcmp(row, name, 4) != 0) continue;
    const uint64_t start = at<uint64_t>(row + 8);
    const uint64_t size = at<uint64_t>(row + 16);
    if (start % 8 != 0 || start > size_ || size > size_ - start) damaged("a section lies outside");
    return Reader(bytes + start, static_cast<size_t>(size));
  }
  damaged("a section is missing");
}

}  // namespace specc::tok
