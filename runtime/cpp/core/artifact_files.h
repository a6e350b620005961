// The files of an artifact against its manifest.
#pragma once

#include <string>

#include "manifest.h"
#include "source.h"

namespace specc {

// Reads manifest.json. Throws Error(NotAnArtifact) if there is none.
Manifest read_manifest(const Source& source);

// Sizes of what the source must have, always; SHA-256 if `hashes` (slow: it reads every byte). Throws Error(File).
void check_files(const Manifest& manifest, const Source& source, bool hashes);

}  // namespace specc
