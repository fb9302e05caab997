// Zip archives as torch.save writes them: members are stored as they are, not compressed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/files/files.h"

namespace intarsia::checkpoint {

/// A member, and where its bytes are in the file.
struct ZipMember {
  std::string name;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

/// The members of the archive in some bytes of a file. FileError that names the file for what is no
/// such archive, and for one of 4 GiB or more.
std::vector<ZipMember> read_zip(std::string_view path, const InputFile& file, std::uint64_t begin,
                                std::uint64_t bytes);

}  // namespace intarsia::checkpoint
