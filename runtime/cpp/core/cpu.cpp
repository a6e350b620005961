#include "cpu.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <sstream>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace specc {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// One group's quota; infinite where it has none.
double quota_of(const std::string& group) {
  double quota = 0, period = 0;
  std::istringstream both(first_line(group + "/cpu.max"));  // "max 100000": no quota
  if (!(both >> quota >> period)) {
    std::istringstream(first_line(group + "/cpu.cfs_quota_us")) >> quota;
    std::istringstream(first_line(group + "/cpu.cfs_period_us")) >> period;
  }
  return quota > 0 && period > 0 ? quota / period : std::numeric_limits<double>::infinity();
}

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

int cgroup_cpus(const std::string& mounts, const std::string& membership) {
  double least = std::numeric_limits<double>::infinity();
  std::istringstream lines(membership);
  for (std::string line; std::getline(lines, line);) {  // "0::/a/b", or "4:cpu,cpuacct:/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find(",cpu,") == std::string::npos) continue;
    const std::string root = unified ? mounts : mounts + "/cpu";
    std::string group = line.substr(second + 1);
    for (;;) {
      least = std::min(least, quota_of(root + group));
      const size_t slash = group.rfind('/');
      if (group.empty() || slash == std::string::npos) break;
      group.resize(slash);
    }
  }
  return std::isfinite(least) ? std::max(1, static_cast<int>(std::ceil(least))) : 0;
}

// Affinity counts hardware threads; two of one core share its vector units and only get in each other's way.
std::vector<int> core_cpus() {
  std::vector<int> cpus;
#if defined(__linux__)
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return {};
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(static_cast<size_t>(cpu), &mask)) continue;
    const std::string number = std::to_string(cpu);
    std::string siblings = first_line("/sys/devices/system/cpu/cpu" + number + "/topology/thread_siblings_list");
    if (cores.insert(siblings.empty() ? number : siblings).second) cpus.push_back(cpu);
  }
#endif
  return cpus;
}

int usable_cores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  if (const auto in_mask = static_cast<int>(core_cpus().size()); in_mask > 0) cores = in_mask;
#if defined(__linux__)
  std::ifstream file("/proc/self/cgroup");
  const std::string membership((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (const int in_quota = cgroup_cpus("/sys/fs/cgroup", membership); in_quota > 0) cores = std::min(cores, in_quota);
#endif
  return std::max(1, cores);
}

}  // namespace specc
