// What a process holds in memory.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace intarsia::testing {

inline std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t pages = 0;
  std::int64_t resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace intarsia::testing
