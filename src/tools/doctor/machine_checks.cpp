#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <thread>

#include "base/text.h"
#include "tools/doctor/checks.h"

namespace intarsia::tools {
namespace {

using Bytes = std::uint64_t;
constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kGiB = Bytes{1} << 30;

constexpr rlim_t kFewFiles = 4096;
constexpr Bytes kLittleLockedMemory = 64 * kMiB;
constexpr Bytes kLittleSharedMemory = 64 * kMiB;
constexpr Bytes kLittleMemory = kGiB;

std::string size_text(Bytes bytes) {
  const bool large = bytes >= kGiB;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s",
                static_cast<double>(bytes) / static_cast<double>(large ? kGiB : kMiB),
                large ? "GiB" : "MiB");
  return text.data();
}

rlimit limit_of(int resource) {
  rlimit limit{};
  getrlimit(static_cast<__rlimit_resource>(resource), &limit);
  return limit;
}

// ---- clock --------------------------------------------------------------------------------------

/// What is wrong with the steady clock, by which all timeouts are measured; empty when nothing is.
std::string steady_clock_problem() {
  using Clock = std::chrono::steady_clock;
  constexpr auto kNap = std::chrono::milliseconds(20);
  constexpr auto kLongNap = std::chrono::seconds(2);
  const auto start = Clock::now();
  auto last = start;
  for (int i = 0; i < 1000; ++i) {
    const auto now = Clock::now();
    if (now < last) return "the steady clock runs backwards";
    last = now;
  }
  std::this_thread::sleep_for(kNap);
  const auto slept = Clock::now() - last;
  if (slept >= kNap && slept < kLongNap) return "";
  const auto count = std::chrono::duration_cast<std::chrono::milliseconds>(slept).count();
  return concat("a sleep of ", kNap.count(), " ms took ", count, " ms by the steady clock");
}

// ---- memory -------------------------------------------------------------------------------------

struct Memory {
  Bytes total = 0;
  Bytes available = 0;
};

Memory read_memory() {
  Memory memory;
  std::ifstream file("/proc/meminfo");
  std::string key;
  for (Bytes kib = 0; file >> key >> kib; file.ignore(std::numeric_limits<int>::max(), '\n')) {
    if (key == "MemTotal:") memory.total = kib << 10;
    if (key == "MemAvailable:") memory.available = kib << 10;
  }
  return memory;
}

/// The least limit among the control group of this process and those around it (version 2).
std::optional<Bytes> control_group_limit() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("0::/")) continue;
  if (line.empty()) return std::nullopt;
  const std::filesystem::path root = "/sys/fs/cgroup";
  std::filesystem::path group = root / line.substr(std::min(line.size(), std::strlen("0::/")));
  std::optional<Bytes> least;
  for (;; group = group.parent_path()) {
    Bytes limit = 0;
    // The text "max" stands for no limit, and the outermost group has no such file.
    if (std::ifstream(group / "memory.max") >> limit)
      least = std::min(least.value_or(limit), limit);
    if (group == root || !group.has_relative_path()) return least;
  }
}

}  // namespace

Check check_clock() {
  if (const std::string problem = steady_clock_problem(); !problem.empty()) {
    return fail("clock", problem,
                "timeouts cannot be trusted here: look for a suspended or overloaded virtual "
                "machine, or a faulty clock source");
  }
  timex state{};
  const int result = adjtimex(&state);
  if (result == -1) {
    return warn("clock",
                concat("whether it is synchronised cannot be read: ", std::strerror(errno)),
                "ask the machine around this container, with timedatectl or chronyc tracking");
  }
  if (result == TIME_ERROR || (state.status & STA_UNSYNC) != 0) {
    return warn("clock", "the wall clock is not synchronised",
                "run chrony or systemd-timesyncd; else times in logs of several machines cannot be "
                "compared");
  }
  const bool nanoseconds = (state.status & STA_NANO) != 0;
  return ok("clock",
            concat("synchronised, offset ", nanoseconds ? state.offset / 1000 : state.offset,
                   " us; the steady clock is steady"));
}

Check check_open_files() {
  const rlimit limit = limit_of(RLIMIT_NOFILE);
  if (limit.rlim_cur == RLIM_INFINITY) return ok("open_files", "unlimited");
  const std::string found = concat("at most ", limit.rlim_cur);
  if (limit.rlim_cur >= kFewFiles) return ok("open_files", found);
  return warn(
      "open_files", concat(found, "; every rank that a process talks to takes some"),
      concat("run ulimit -n ", kFewFiles, " before the job, or raise nofile in limits.conf"));
}

Check check_locked_memory(bool matters) {
  const rlimit limit = limit_of(RLIMIT_MEMLOCK);
  if (limit.rlim_cur == RLIM_INFINITY) return ok("locked_memory", "unlimited");
  const std::string found = concat("at most ", size_text(limit.rlim_cur));
  if (limit.rlim_cur >= kLittleLockedMemory) return ok("locked_memory", found);
  if (!matters) return ok("locked_memory", concat(found, ", which Gloo does not mind"));
  return warn("locked_memory", concat(found, ", too little for NCCL or UCC over RDMA"),
              "run ulimit -l unlimited before the job, or raise memlock in limits.conf");
}

Check check_shared_memory() {
  const std::string remedy =
      "give /dev/shm at least 64 MiB: remove what is left over there, or start the container with "
      "--shm-size=1g";
  struct statvfs state {};
  if (statvfs("/dev/shm", &state) != 0) {
    return warn("shared_memory", concat("/dev/shm: ", std::strerror(errno)), remedy);
  }
  const Bytes size = Bytes{state.f_blocks} * state.f_frsize;
  const Bytes free = Bytes{state.f_bavail} * state.f_frsize;
  const std::string found = concat("/dev/shm: ", size_text(size), ", ", size_text(free), " free");
  return free >= kLittleSharedMemory ? ok("shared_memory", found)
                                     : warn("shared_memory", found, remedy);
}

Check check_cores(const Environment& environment) {
  // Not known on machines of more than 1024 cores, for which cpu_set_t is too small.
  cpu_set_t allowed;
  const bool known = sched_getaffinity(0, sizeof(allowed), &allowed) == 0;
  const auto here =
      known ? static_cast<unsigned>(CPU_COUNT(&allowed)) : std::thread::hardware_concurrency();
  const auto threads = environment("OMP_NUM_THREADS");
  return ok("cores",
            concat(here, " for this process; OMP_NUM_THREADS",
                   threads ? concat('=', *threads)
                           : " is not set, so each process on this machine uses all of them"));
}

Check check_memory() {
  const Memory memory = read_memory();
  const std::optional<Bytes> limit = control_group_limit();
  const std::string found =
      concat(size_text(memory.total), ", ", size_text(memory.available), " available",
             limit ? concat(", control group limit ", size_text(*limit)) : "");
  if (std::min(memory.available, limit.value_or(memory.available)) >= kLittleMemory) {
    return ok("memory", found);
  }
  return warn("memory", found,
              "a process with libtorch takes several 100 MiB: end other programs, start fewer "
              "ranks on this machine, or raise the limit");
}

}  // namespace intarsia::tools
