// The files of an artifact against its manifest.
#pragma once

#include <string>

#include "manifest.h"

namespace specc {

// Reads DIR/manifest.json. Throws Error(NotAnArtifact) if there is none.
Manifest read_manifest(const std::string& directory);

// Sizes always, SHA-256 if `hashes` (slow: it reads every byte). Throws Error(File).
void check_files(const Manifest& manifest, const std::string& directory, bool hashes);

}  // namespace specc
