#include "normalizer.h"

#include "byte_alphabet.h"
#include "utf8.h"

namespace specc::tok {

namespace {

namespace normalizing {
enum : uint32_t { kForm = 1, kPrepend, kReplace, kReplaceText, kStrip, kMap, kBytes };
}

}  // namespace

Shared::Shared(const File& file)
    : sets(read_sets(file.section("SETS"))), regexes(read_regexes(file.section("REGX"), sets)) {}

std::string replace_all(std::string_view text, const Regex& regex, const std::string& with, size_t* first_end) {
  std::vector<Match> matches;
  regex.find_all(text, matches);
  std::string result;
  size_t last = 0;
  for (const Match& match : matches) {
    result += text.substr(last, match.begin - last);
    result += with;
    last = match.end;
  }
  result += text.substr(last);
  if (first_end) *first_end = !matches.empty() && matches[0].begin == 0 ? matches[0].end : 0;
  return result;
}

std::string replace_all(std::string_view text, const std::string& what, const std::string& with) {
  std::string result;
  size_t last = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, last)) {
    result += text.substr(last, at - last);
    result += with;
    last = at + what.size();
  }
  result += text.substr(last);
  return result;
}

Normalizer::Operation Normalizer::read(Reader& reader, const Shared& shared) {
  Operation op;
  op.kind = reader.u32();
  switch (op.kind) {
    case normalizing::kForm:
      op.form = static_cast<Form>(reader.below(4, "a normalization form is unknown"));
      break;
    case normalizing::kPrepend:
      op.with = reader.text();
      break;
    case normalizing::kReplace:
      op.regex = &shared.regexes[reader.below(static_cast<uint32_t>(shared.regexes.size()), "a pattern is missing")];
      op.with = reader.text();
      break;
    case normalizing::kReplaceText:
      op.what = reader.text();
      op.with = reader.text();
      if (op.what.empty()) damaged("a replacement of nothing");
      break;
    case normalizing::kStrip:
      op.left = reader.flag();
      op.right = reader.flag();
      op.spaces = &shared.sets[reader.below(static_cast<uint32_t>(shared.sets.size()), "a character set is missing")];
      break;
    case normalizing::kMap:
      op.map = CharMap(reader);
      break;
    case normalizing::kBytes:
      break;
    default:
      damaged("a normalizer is unknown");
  }
  return op;
}

Normalizer::Normalizer(Reader reader, const Shared& shared, UnicodeForms forms) : forms_(forms) {
  for (uint32_t count = reader.u32(); count > 0; --count) operations_.push_back(read(reader, shared));
  reader.finish();
}

void Normalizer::replace(const Operation& op, std::string& text, bool& at_origin) {
  // A replacement stands where the last character that it replaces stood.
  if (op.kind == normalizing::kReplace) {
    const size_t first_character = decode(text, 0).bytes;
    size_t first_end = 0;
    text = replace_all(text, *op.regex, op.with, &first_end);
    if (first_end > 0) at_origin = at_origin && !op.with.empty() && first_end == first_character;
    return;
  }
  const bool first = text.compare(0, op.what.size(), op.what) == 0;
  if (first) at_origin = at_origin && !op.with.empty() && decode(op.what, 0).bytes == op.what.size();
  text = replace_all(text, op.what, op.with);
}

void Normalizer::strip(const Operation& op, std::string& text, bool& at_origin) {
  size_t begin = 0, end = text.size();
  while (op.left && begin < end) {
    const CodePoint c = decode(text, begin);
    if (!op.spaces->has(c.value)) break;
    begin += c.bytes;
  }
  while (op.right && end > begin) {
    const size_t last = previous(text, end);
    if (!op.spaces->has(decode(text, last).value)) break;
    end = last;
  }
  if (begin > 0) at_origin = false;
  text = text.substr(begin, end - begin);
}

void Normalizer::map(const Operation& op, std::string& text, bool& at_origin) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode(text, at);
    CharMap::Target target;
    if (!op.map.find(c.value, target)) {
      result.append(text, at, c.bytes);
    } else {
      for (uint32_t i = 0; i < target.size; ++i) append(result, target.data[i]);
      if (at == 0 && target.size == 0) at_origin = false;
    }
    at += c.bytes;
  }
  text = std::move(result);
}

void Normalizer::apply(std::string& text, bool& at_origin) const {
  for (const Operation& op : operations_) {
    if (text.empty()) return;
    switch (op.kind) {
      case normalizing::kForm:
        text = forms_.normalize(text, op.form);
        break;
      case normalizing::kPrepend:
        text.insert(0, op.with);
        break;
      case normalizing::kStrip:
        strip(op, text, at_origin);
        break;
      case normalizing::kMap:
        map(op, text, at_origin);
        break;
      case normalizing::kBytes: {
        std::string named;
        for (char byte : text) append_byte_character(named, static_cast<uint8_t>(byte));
        text = std::move(named);
        break;
      }
      default:
        replace(op, text, at_origin);
    }
  }
}

}  // namespace specc::tok
