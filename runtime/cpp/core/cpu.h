// What this machine can run.
#pragma once

#include <string>

namespace specc {

const char* cpu_arch();                      // "x86_64", "aarch64", ...
bool cpu_isa_known(const std::string& isa);  // whether the name means anything on this architecture
bool cpu_supports(const std::string& isa);   // "x86-64-v3", ...

// Physical cores this process may use: affinity mask, hyper-threads counted once, cgroup quota respected.
int usable_cores();

}  // namespace specc
