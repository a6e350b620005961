// Drives the tokenizer for tests/runtime/test_tokenizer.py.
//
//   driver run TOKENIZER REQUESTS ANSWERS    requests and answers are records of little-endian numbers and bytes
//   driver damage TOKENIZER SEED COUNT   loads COUNT damaged copies and uses those that still load
//   driver time TOKENIZER TEXT               milliseconds to load, megabytes a second to encode
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tokenizer.h"

namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_file(const std::string& path, const std::string& data) {
  std::ofstream file(path, std::ios::binary);
  file.write(data.data(), static_cast<std::streamsize>(data.size()));
}

template <typename T>
T take(const std::string& data, size_t& at) {
  T value;
  if (at + sizeof value > data.size()) throw std::runtime_error("a request ends early");
  std::memcpy(&value, data.data() + at, sizeof value);
  at += sizeof value;
  return value;
}

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string& out, const std::string& text) {
  put(out, static_cast<uint32_t>(text.size()));
  out += text;
}

// A request: kind, flags, size, payload. Kind 0: a text to encode (flags 1: template, 2: parse special tokens), whose
// ids are then decoded both ways. Kind 1: ids to decode (flags 1: skip special tokens).
int run(const std::string& tokenizer_path, const std::string& requests_path, const std::string& answers_path) {
  const auto tokenizer = specc::Tokenizer::load(read_file(tokenizer_path));
  const std::string requests = read_file(requests_path);
  std::string answers;
  for (size_t at = 0; at < requests.size();) {
    const auto kind = take<uint32_t>(requests, at);
    const auto flags = take<uint32_t>(requests, at);
    const auto size = take<uint32_t>(requests, at);
    if (size > requests.size() - at) throw std::runtime_error("a request ends early");
    const std::string payload = requests.substr(at, size);
    at += size;
    if (kind == 0) {
      const auto ids = tokenizer->encode(payload, flags & 1, flags & 2);
      put(answers, static_cast<uint32_t>(ids.size()));
      for (int64_t id : ids) put(answers, id);
      put_text(answers, tokenizer->decode(ids.data(), ids.size(), false));
      put_text(answers, tokenizer->decode(ids.data(), ids.size(), true));
    } else {
      std::vector<int64_t> ids(size / 8);
      std::memcpy(ids.data(), payload.data(), ids.size() * 8);
      put_text(answers, tokenizer->decode(ids.data(), ids.size(), flags & 1));
    }
  }
  write_file(answers_path, answers);
  return 0;
}

uint32_t checksum(const std::string& data, size_t from) {
  uint32_t crc = 0xFFFFFFFFu;
  for (size_t i = from; i < data.size(); ++i) {
    crc ^= static_cast<unsigned char>(data[i]);
    for (int k = 0; k < 8; ++k) crc = (crc & 1) ? 0xEDB88320u ^ (crc >> 1) : crc >> 1;
  }
  return ~crc;
}

int damage(const std::string& tokenizer_path, unsigned seed, int count) {
  const std::string whole = read_file(tokenizer_path);
  const std::string text = "Hello <s> w\xC3\xB6rld\xE2\x96\x81 12345 \xF0\x9F\x98\x80 <|endoftext|>  \n\t e\xCC\x81 \xFF x's";
  std::mt19937 random(seed);
  const auto below = [&](size_t limit) { return static_cast<size_t>(random()) % limit; };
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    std::string data = whole;
    switch (below(4)) {
      case 0:
        data.resize(below(data.size()));
        break;
      case 1:  // numbers at the borders
        for (size_t n = 1 + below(3); n > 0; --n) {
          static const uint32_t values[] = {0, 1, 0xFFFFFFFFu, 0x7FFFFFFFu, 0x80000000u, 0x10FFFF, 255};
          const uint32_t value = values[below(7)];
          std::memcpy(&data[below(data.size() / 4) * 4], &value, 4);
        }
        break;
      case 2:
        data[below(std::min<size_t>(data.size(), 512))] ^= static_cast<char>(1 << below(8));
        [[fallthrough]];
      default:
        for (size_t n = 1 + below(8); n > 0; --n) data[below(data.size())] ^= static_cast<char>(1 << below(8));
    }
    if (data.size() >= 32 && below(8) != 0) {  // past the checksum, to the checks behind it
      data.resize(data.size() / 8 * 8);
      const auto size = static_cast<uint64_t>(data.size());
      std::memcpy(&data[0], whole.data(), 12);
      std::memcpy(&data[16], &size, 8);
      const uint32_t crc = checksum(data, 16);
      std::memcpy(&data[12], &crc, 4);
    }
    try {
      const auto tokenizer = specc::Tokenizer::load(data);
      const auto ids = tokenizer->encode(text, true, i % 2 == 0);
      tokenizer->decode(ids.data(), ids.size(), false);
      std::vector<int64_t> all;
      for (int64_t id = -2; id < 300; ++id) all.push_back(id);
      all.push_back(INT64_MAX);
      tokenizer->decode(all.data(), all.size(), true);
    } catch (const std::runtime_error&) {
      ++refused;
    }
  }
  std::printf("%d\n", refused);
  return 0;
}

int time_it(const std::string& tokenizer_path, const std::string& text_path) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); };
  auto start = Clock::now();
  const auto tokenizer = specc::Tokenizer::load(read_file(tokenizer_path));
  const double load = since(start);
  const std::string text = read_file(text_path);
  start = Clock::now();
  const auto ids = tokenizer->encode(text, false, true);
  const double encode = since(start);
  std::printf("load %.1f ms, encode %.2f MB/s, %zu tokens\n", load * 1e3, static_cast<double>(text.size()) / 1e6 / encode,
              ids.size());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string mode = argc > 1 ? argv[1] : "";
    if (mode == "run" && argc == 5) return run(argv[2], argv[3], argv[4]);
    if (mode == "damage" && argc == 5) return damage(argv[2], static_cast<unsigned>(std::stoul(argv[3])), std::stoi(argv[4]));
    if (mode == "time" && argc == 4) return time_it(argv[2], argv[3]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "see the head of driver.cpp\n");
  return 2;
}
