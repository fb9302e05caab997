// Whether this process is a fork of the one that made something.
#pragma once

#include <cstdint>
#include <string_view>

namespace intarsia {

/// How often the process that this one descends from was forked since the library was loaded. What
/// was made under another count belongs to a parent, with its connections and threads: it may be
/// neither used nor destroyed here.
std::uint32_t forks();

/// Refuses the use of what a parent made.
[[noreturn]] void fail_in_fork(std::string_view what);

}  // namespace intarsia
