#include "cpu.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace specc {
namespace {

#if defined(__linux__)
// Affinity counts hardware threads; two of one core share its vector units and only get in each other's way.
int cores_in_affinity_mask() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return 0;
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask)) continue;
    std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
    cores.insert(siblings);
  }
  return static_cast<int>(cores.size());
}

int cores_in_cgroup_quota() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (!(file >> quota >> period) || quota <= 0 || period <= 0) return 0;  // "max": no quota
  return std::max(1, static_cast<int>(std::ceil(quota / period)));
}
#endif

}  // namespace

const char* cpu_arch() {
#if defined(__x86_64__)
  return "x86_64";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "unknown";
#endif
}

bool cpu_isa_known(const std::string& isa) {
#if defined(__x86_64__)
  return isa == "x86-64" || isa == "x86-64-v2" || isa == "x86-64-v3" || isa == "x86-64-v4";
#elif defined(__aarch64__)
  return isa == "armv8-a";
#else
  return isa.empty();
#endif
}

bool cpu_supports(const std::string& isa) {
  if (!cpu_isa_known(isa)) return false;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == "x86-64") return true;
  const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  if (isa == "x86-64-v2") return v2;
  const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  if (isa == "x86-64-v3") return v3;
  return v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  return true;
#endif
}

int usable_cores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  if (const int in_mask = cores_in_affinity_mask(); in_mask > 0) cores = in_mask;
  if (const int in_quota = cores_in_cgroup_quota(); in_quota > 0) cores = std::min(cores, in_quota);
#endif
  return std::max(1, cores);
}

}  // namespace specc
