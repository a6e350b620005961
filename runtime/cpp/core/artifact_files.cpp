#include "artifact_files.h"

#include "error.h"
#include "mapped_file.h"
#include "sha256.h"

namespace specc {
namespace {

constexpr uint64_t kMaxManifest = uint64_t{32} << 20;

void check_size(const std::string& path, uint64_t expected) {
  const auto size = regular_file_size(path);
  if (!size) throw Error(Code::File, "a file of the artifact is missing").where(path).cure("copy the artifact again");
  if (*size == expected) return;
  throw Error(Code::File, "a file of the artifact has the wrong size")
      .where(path)
      .expected(std::to_string(expected) + " bytes")
      .found(std::to_string(*size) + " bytes")
      .cure("copy the artifact again");
}

void check_hash(const std::string& path, const std::string& expected) {
  const MappedFile file(path);
  const std::string found = sha256_hex(file.data(), file.size());
  if (found == expected) return;
  throw Error(Code::File, "a file of the artifact was altered")
      .where(path)
      .expected("sha256 " + expected)
      .found("sha256 " + found)
      .cure("copy the artifact again");
}

}  // namespace

Manifest read_manifest(const std::string& directory) {
  const std::string path = directory + "/manifest.json";
  if (!is_directory(directory) || !regular_file_size(path)) {
    throw Error(Code::NotAnArtifact, "not an artifact")
        .where(directory)
        .expected("a directory with a manifest.json")
        .cure("make one with: specc compile MODEL -o ART");
  }
  return Manifest::parse(read_text_file(path, kMaxManifest), path);
}

void check_files(const Manifest& manifest, const std::string& directory, bool hashes) {
  check_size(directory + "/" + manifest.weights_file, manifest.weights_bytes);
  for (const auto& file : manifest.files) {
    const std::string path = directory + "/" + file.path;
    check_size(path, file.bytes);
    if (hashes) check_hash(path, file.sha256);
  }
}

}  // namespace specc
