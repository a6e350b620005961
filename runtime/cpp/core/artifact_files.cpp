#include "artifact_files.h"

#include "error.h"
#include "sha256.h"

namespace specc {
namespace {

constexpr uint64_t kMaxManifest = uint64_t{32} << 20;
constexpr char kManifest[] = "manifest.json";

void check_size(const Source& source, const std::string& file, uint64_t expected) {
  const auto size = source.size(file);
  if (!size) {
    throw Error(Code::File, "a file of the artifact is missing").where(source.name(file)).cure("copy the artifact again");
  }
  if (*size == expected) return;
  throw Error(Code::File, "a file of the artifact has the wrong size")
      .where(source.name(file))
      .expected(std::to_string(expected) + " bytes")
      .found(std::to_string(*size) + " bytes")
      .cure("copy the artifact again");
}

void check_hash(const Source& source, const std::string& file, const std::string& expected) {
  const MappedFile mapped = source.map(file);
  const std::string found = sha256_hex(mapped.data(), mapped.size());
  if (found == expected) return;
  throw Error(Code::File, "a file of the artifact was altered")
      .where(source.name(file))
      .expected("sha256 " + expected)
      .found("sha256 " + found)
      .cure("copy the artifact again");
}

}  // namespace

Manifest read_manifest(const Source& source) {
  const auto size = source.size(kManifest);
  if (!size) {
    throw Error(Code::NotAnArtifact, "not an artifact")
        .where(source.name(kManifest))
        .expected("a directory with a manifest.json")
        .cure("make one with: specc compile MODEL -o ART");
  }
  if (*size > kMaxManifest) {
    throw Error(Code::File, "a file is too large")
        .where(source.name(kManifest))
        .expected("at most " + std::to_string(kMaxManifest) + " bytes")
        .found(std::to_string(*size));
  }
  const MappedFile file = source.map(kManifest);
  const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
  return Manifest::parse(text, source.name(kManifest));
}

void check_files(const Manifest& manifest, const Source& source, bool hashes) {
  check_size(source, manifest.weights_file, manifest.weights_bytes);
  for (const auto& file : manifest.files) {
    // What a folder has beside them, such as the library that runs this, an app need not carry in memory.
    if (source.directory().empty() && !source.size(file.path)) continue;
    check_size(source, file.path, file.bytes);
    if (hashes) check_hash(source, file.path, file.sha256);
  }
}

}  // namespace specc
