#include "tokenizer.h"

#include "added_tokens.h"
#include "decoder.h"
#include "model.h"
#include "normalizer.h"
#include "pretokenizer.h"
#include "reader.h"
#include "utf8.h"

namespace specc {

namespace {

using tok::Array;
using tok::kNone;

struct Template {
  Template(tok::Reader reader, const tok::Vocabulary& vocabulary)
      : before(reader.array<uint32_t>()), after(reader.array<uint32_t>()) {
    reader.finish();
    for (const Array<uint32_t>& ids : {before, after})
      for (uint32_t id : ids)
        if (id >= vocabulary.size()) tok::damaged("the template names a token that is missing");
  }
  Array<uint32_t> before, after;
};

}  // namespace

struct Tokenizer::Parts {
  explicit Parts(std::string_view bytes)
      : file(bytes),
        shared(file),
        vocabulary(file.section("TOKN")),
        added(file.section("ADDT"), shared.sets, vocabulary),
        normalizer(file.section("NORM"), shared, tok::UnicodeForms(file.section("UNIC"))),
        pre_tokenizer(file.section("PRET"), shared),
        model(tok::read_model(file.section("MODL"), vocabulary, byte_level)),
        frame(file.section("POST"), vocabulary),
        decoder(file.section("DECO"), shared, vocabulary, byte_level) {}

  // The text between added tokens that match before normalization.
  void encode_stretch(std::string text, bool at_origin, bool parse_special, std::vector<int64_t>& ids) const;

  tok::File file;
  tok::Shared shared;
  tok::Vocabulary vocabulary;
  tok::AddedTokens added;
  tok::Normalizer normalizer;
  tok::PreTokenizer pre_tokenizer;
  bool byte_level = false;
  std::unique_ptr<tok::Model> model;
  Template frame;
  tok::Decoder decoder;
};

void Tokenizer::Parts::encode_stretch(std::string text, bool at_origin, bool parse_special,
                                      std::vector<int64_t>& ids) const {
  normalizer.apply(text, at_origin);
  for (const tok::Stretch& stretch : added.cut(text, true, parse_special)) {
    if (stretch.id != kNone) {
      ids.push_back(stretch.id);
      continue;
    }
    if (stretch.begin == stretch.end) continue;
    tok::Pieces pieces;
    pieces.text = text.substr(stretch.begin, stretch.end - stretch.begin);
    pieces.list.push_back({0, pieces.text.size(), at_origin && stretch.begin == 0});
    pre_tokenizer.apply(pieces);
    for (const tok::Piece& piece : pieces.list)
      model->encode(std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin), ids);
  }
}

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer> Tokenizer::load(std::string_view file) {
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<Parts>(file)));
}

std::vector<int64_t> Tokenizer::encode(std::string_view bytes, bool add_special, bool parse_special) const {
  std::vector<int64_t> ids;
  std::string repaired;
  std::string_view text = bytes;
  if (!tok::is_utf8(bytes)) {
    tok::append_repaired(repaired, bytes);
    text = repaired;
  }
  if (add_special) ids.assign(parts_->frame.before.begin(), parts_->frame.before.end());
  for (const tok::Stretch& stretch : parts_->added.cut(text, false, parse_special)) {
    if (stretch.id != kNone)
      ids.push_back(stretch.id);
    else if (stretch.begin < stretch.end)
      parts_->encode_stretch(std::string(text.substr(stretch.begin, stretch.end - stretch.begin)), stretch.begin == 0,
                             parse_special, ids);
  }
  if (add_special) ids.insert(ids.end(), parts_->frame.after.begin(), parts_->frame.after.end());
  return ids;
}

std::string Tokenizer::decode(const int64_t* ids, size_t count, bool skip_special) const {
  return parts_->decoder.decode(ids, count, skip_special);
}

size_t Tokenizer::size() const { return parts_->vocabulary.size(); }

}  // namespace specc
