#include "model.h"

#include "bpe.h"
#include "unigram.h"

namespace specc::tok {

ModelHeader::ModelHeader(Reader& reader, const Vocabulary& vocabulary) {
  kind = reader.u32();
  const uint32_t flags = reader.below(16, "a model flag is unknown");
  byte_level = flags & 1;
  byte_fallback = flags & 2;
  ignore_merges = flags & 4;
  fuse_unknown = flags & 8;
  unknown = reader.below_or_none(vocabulary.size(), "the unknown token is missing");
  byte_ids = reader.array<uint32_t>();
  if (byte_ids.size != 256) damaged("the byte tokens have no shape");
  for (uint32_t id : byte_ids)
    if (id != kNone && id >= vocabulary.size()) damaged("a byte token is missing");
}

std::unique_ptr<Model> read_model(Reader reader, const Vocabulary& vocabulary, bool& byte_level) {
  const ModelHeader header(reader, vocabulary);
  byte_level = header.byte_level;
  std::unique_ptr<Model> model;
  if (header.kind == 1)
    model = std::make_unique<Bpe>(reader, header, vocabulary);
  else if (header.kind == 2)
    model = std::make_unique<Unigram>(reader, header, vocabulary);
  else
    damaged("the model is unknown");
  reader.finish();
  return model;
}

}  // namespace specc::tok
