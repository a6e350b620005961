// What this machine can run.
#pragma once

#include <string>
#include <vector>

namespace specc {

const char* cpu_arch();                      // "x86_64", "aarch64", ...
bool cpu_isa_known(const std::string& isa);  // whether the name means anything on this architecture
bool cpu_supports(const std::string& isa);   // "x86-64-v3", ...

// Physical cores this process may use: affinity mask, hyper-threads counted once, cgroup quota respected.
int usable_cores();

// The first hardware thread of each physical core in this process's affinity mask, ascending; empty where that is unknown.
std::vector<int> core_cpus();

// CPUs' worth of time that cgroup quotas leave this process, rounded up; 0 for no bound. `mounts` is where
// cgroup files are ("/sys/fs/cgroup"), `membership` the text of /proc/self/cgroup. Every level above counts as well, in
// version 2 (cpu.max) and version 1 (cpu.cfs_quota_us).
int cgroup_cpus(const std::string& mounts, const std::string& membership);

}  // namespace specc
