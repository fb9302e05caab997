// Arguments that several commands read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "intarsia/mesh.h"

namespace intarsia::tools {

/// `[dp=2,tp=4]`, with or without brackets.
Mesh read_mesh(const std::string& text);

/// `65536`, `64KiB`, `8MiB`, `2GiB`. `option`: the name of the argument, for errors.
std::int64_t read_bytes(std::string_view option, std::string_view text);

}  // namespace intarsia::tools
