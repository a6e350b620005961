#include "decoder.h"

#include <algorithm>

#include "byte_alphabet.h"
#include "utf8.h"

namespace specc::tok {

namespace {

namespace decoding {
enum : uint32_t { kByteLevel = 1, kReplace, kReplaceText, kByteFallback, kFuse, kStrip, kMetaspace };
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The byte that `<0xNN>` names, or -1.
int named_byte(const std::string& token) {
  if (token.size() != 6 || token.compare(0, 3, "<0x") != 0 || token[5] != '>') return -1;
  const int high = token[3] == '+' ? 0 : hex_digit(token[3]);  // as Rust's from_str_radix, which takes a plus sign
  const int low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string joined(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

void decode_bytes(std::vector<std::string>& tokens) {
  std::vector<std::string> result;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (is_utf8(bytes)) {
      result.push_back(bytes);
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) {
        result.emplace_back();
        append(result.back(), kReplacement);
      }
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    const int byte = named_byte(token);
    if (byte >= 0) {
      bytes += static_cast<char>(byte);
      continue;
    }
    flush();
    result.push_back(std::move(token));
  }
  flush();
  tokens = std::move(result);
}

void strip(std::string& token, uint32_t character, uint32_t start, uint32_t stop) {
  size_t begin = 0, end = token.size();
  for (; start > 0 && begin < end; --start) {
    const CodePoint c = decode(token, begin);
    if (c.value != character) break;
    begin += c.bytes;
  }
  for (; stop > 0 && end > begin; --stop) {
    const size_t last = previous(token, end);
    if (decode(token, last).value != character) break;
    end = last;
  }
  token = token.substr(begin, end - begin);
}

void replace_character(std::string& token, uint32_t character, const char* with) {
  std::string result;
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = decode(token, at);
    if (c.value == character)
      result += with;
    else
      result.append(token, at, c.bytes);
    at += c.bytes;
  }
  token = std::move(result);
}

}  // namespace

Decoder::Operation Decoder::read(Reader& reader, const Shared& shared) {
  Operation op;
  op.kind = reader.u32();
  switch (op.kind) {
    case decoding::kByteLevel:
    case decoding::kByteFallback:
    case decoding::kFuse:
      break;
    case decoding::kReplace:
      op.regex = &shared.regexes[reader.below(static_cast<uint32_t>(shared.regexes.size()), "a pattern is missing")];
      op.with = reader.text();
      break;
    case decoding::kReplaceText:
      op.what = reader.text();
      op.with = reader.text();
      if (op.what.empty()) damaged("a replacement of nothing");
      break;
    case decoding::kStrip:
      op.character = reader.u32();
      op.start = reader.u32();
      op.stop = reader.u32();
      break;
    case decoding::kMetaspace:
      op.character = reader.u32();
      op.drops_first = reader.flag();
      break;
    default:
      damaged("a decoder is unknown");
  }
  return op;
}

Decoder::Decoder(Reader reader, const Shared& shared, const Vocabulary& vocabulary, bool byte_level)
    : vocabulary_(vocabulary), byte_level_(byte_level) {
  spaced_ = !reader.flag();
  for (uint32_t count = reader.u32(); count > 0; --count) operations_.push_back(read(reader, shared));
  reader.finish();
  plain_bytes_ = byte_level && operations_.size() == 1 && operations_[0].kind == decoding::kByteLevel;
}

std::string Decoder::text_of(uint32_t id) const {
  const std::string_view bytes = vocabulary_.bytes(id);
  if (!byte_level_ || vocabulary_.raw(id)) return std::string(bytes);
  std::string text;
  for (char byte : bytes) append_byte_character(text, static_cast<uint8_t>(byte));
  return text;
}

void Decoder::apply(const Operation& op, std::vector<std::string>& tokens) {
  switch (op.kind) {
    case decoding::kByteLevel: {
      std::string bytes;
      for (const std::string& token : tokens)
        if (!append_named_bytes(bytes, token)) bytes += token;
      tokens.assign(1, std::string());
      append_repaired(tokens[0], bytes);
      return;
    }
    case decoding::kByteFallback:
      decode_bytes(tokens);
      return;
    case decoding::kFuse:
      tokens.assign(1, joined(tokens));
      return;
    default:
      break;
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::string& token = tokens[i];
    if (op.kind == decoding::kReplace) token = replace_all(token, *op.regex, op.with);
    if (op.kind == decoding::kReplaceText) token = replace_all(token, op.what, op.with);
    if (op.kind == decoding::kStrip) strip(token, op.character, op.start, op.stop);
    if (op.kind == decoding::kMetaspace) replace_character(token, op.character, i == 0 && op.drops_first ? "" : " ");
  }
}

std::string Decoder::decode(const int64_t* ids, size_t count, bool skip_special) const {
  std::string bytes;
  std::vector<std::string> tokens;
  for (size_t i = 0; i < count; ++i) {
    if (!vocabulary_.has(ids[i])) continue;
    const auto id = static_cast<uint32_t>(ids[i]);
    if (skip_special && vocabulary_.special(id)) continue;
    if (plain_bytes_)
      bytes += vocabulary_.bytes(id);
    else
      tokens.push_back(text_of(id));
  }
  if (!plain_bytes_) {
    for (const Operation& op : operations_) apply(op, tokens);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && spaced_) bytes += ' ';
      bytes += tokens[i];
    }
  }
  std::string text;
  append_repaired(text, bytes);
  return text;
}

}  // namespace specc::tok
