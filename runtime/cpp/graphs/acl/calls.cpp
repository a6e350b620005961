#include "acl/calls.h"

#include <cstdlib>
#include <dlfcn.h>
#include <string>
#include <vector>

#include "core/error.h"

namespace specc {
namespace {

constexpr char kLibrary[] = "libascendcl.so";
void* open_library(std::string& told) {
  std::vector<std::string> places;
  for (const char* name : {"ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"}) {  // what set_env.sh sets
    if (const char* home = std::getenv(name)) places.push_back(std::string(home) + "/lib64/" + kLibrary);
  }
  places.emplace_back(kLibrary);
  for (const std::string& place : places) {
    // Global, as if linked: CANN loads parts of itself that expect it so.
    if (void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
    const char* reason = dlerror();
    told += (told.empty() ? "" : "; ") + std::string(reason != nullptr ? reason : place);
  }
  return nullptr;
}

Acl find_calls() {
  std::string told;
  void* library = open_library(told);
  if (library == nullptr) {
    throw Error(Code::NoRuntime, "the artifact runs on an NPU, and CANN's libascendcl cannot be loaded")
        .found(told)
        .cure("install CANN and the NPU's driver, and source its set_env.sh; or set SPECC_EXECUTOR=onnxruntime, which runs "
              "the artifact's ONNX models on the CPU");
  }
  Acl acl;
#define SPECC_FIND(name) acl.name = reinterpret_cast<decltype(acl.name)>(dlsym(library, #name));
#define SPECC_MISSING(name) \
  if (acl.name == nullptr) told += (told.empty() ? "" : ", ") + std::string(#name);
  SPECC_ACL_CALLS(SPECC_FIND)
  SPECC_ACL_LATER_CALLS(SPECC_FIND)
  told.clear();
  SPECC_ACL_CALLS(SPECC_MISSING)
#undef SPECC_FIND
#undef SPECC_MISSING
  if (!told.empty()) {
    throw Error(Code::NoRuntime, "CANN's libascendcl is too old, or no libascendcl")
        .found("without " + told)
        .cure("install CANN 8.0 or later");
  }
  return acl;
}

}  // namespace

const Acl& load_acl() {
  static const Acl acl = find_calls();  // tried again if it throws
  return acl;
}

}  // namespace specc
