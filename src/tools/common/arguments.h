// Arguments that several commands read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "intarsia/layout.h"
#include "intarsia/tensor_type.h"

namespace intarsia::tools {

/// `[dp=2,tp=4]`, with or without brackets.
Mesh read_mesh(const std::string& text);

/// `65536`, `64KiB`, `8MiB`, `2GiB`. `option`: the name of the argument, for errors.
std::int64_t read_bytes(std::string_view option, std::string_view text);

/// `8,12` or `[8, 12]`; nothing for a scalar.
Shape read_shape(const std::string& text);

DType read_dtype(const std::string& text);

/// Writes what a command prints to a file, or to the standard output where `path` is empty; the
/// exit code.
int write_output(std::string_view command, const std::string& text, const std::string& path);

}  // namespace intarsia::tools
