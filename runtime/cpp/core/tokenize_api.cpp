// Text <-> tokens. The tokenizer's tables are read at the first call; who works with token ids never pays for them.

#include "../tokenizer/tokenizer.h"

#include <algorithm>
#include <stdexcept>

#include "handles.h"
#include "mapped_file.h"

using namespace specc;

namespace {

const Tokenizer& tokenizer_of(const Artifact& artifact) {
  auto& lazy = artifact.tokenizer();
  const std::lock_guard<std::mutex> guard(lazy.mutex);
  if (lazy.loaded == nullptr) {
    constexpr char kFile[] = "tokenizer.bin";
    const std::string path = artifact.source().name(kFile);
    if (!artifact.source().size(kFile)) {
      throw Error(Code::NoTokenizer, "the artifact has no tokenizer")
          .where(path)
          .cure("pass token ids, or compile from a folder with tokenizer.json");
    }
    try {
      const MappedFile file = artifact.source().map(kFile);
      const std::string_view bytes(reinterpret_cast<const char*>(file.data()), file.size());
      lazy.loaded = std::shared_ptr<const Tokenizer>(Tokenizer::load(bytes));
    } catch (const std::runtime_error& error) {
      throw Error(Code::Damaged, "the tokenizer's tables are damaged").where(path).found(error.what());
    }
  }
  return *static_cast<const Tokenizer*>(lazy.loaded.get());
}

// The two-call pattern: no buffer asks for the size, too small a one is an error that tells it.
template <class Sequence, class Element>
specc_result hand_out(const Sequence& result, Element* buffer, size_t capacity, size_t* size) {
  *size = result.size();
  if (buffer == nullptr) return SPECC_OK;
  if (capacity < result.size()) {
    throw Error(Code::Option, "the buffer is too small")
        .expected(std::to_string(result.size()))
        .found(std::to_string(capacity));
  }
  std::copy(result.begin(), result.end(), buffer);
  return SPECC_OK;
}

}  // namespace

specc_result specc_tokenize(const specc_artifact* handle, const char* text, size_t bytes, int32_t add_special,
                            int32_t parse_special, int64_t* ids, size_t capacity, size_t* count) {
  return guarded([&] {
    require(handle, "artifact");
    require(count, "count");
    if (bytes > 0) require(text, "text");
    const std::string_view view(text, bytes);
    return hand_out(tokenizer_of(*handle->artifact).encode(view, add_special != 0, parse_special != 0), ids, capacity,
                    count);
  });
}

specc_result specc_detokenize(const specc_artifact* handle, const int64_t* ids, size_t count, int32_t skip_special,
                              char* text, size_t capacity, size_t* bytes) {
  return guarded([&] {
    require(handle, "artifact");
    require(bytes, "bytes");
    if (count > 0) require(ids, "ids");
    return hand_out(tokenizer_of(*handle->artifact).decode(ids, count, skip_special != 0), text, capacity, bytes);
  });
}
