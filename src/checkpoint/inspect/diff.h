// What two checkpoints do not share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/files/files.h"
#include "checkpoint/format/manifest.h"

namespace intarsia::checkpoint {

/// A checkpoint and its folder.
struct Opened {
  std::string folder;
  Manifest manifest;
};

struct Difference {
  std::string name;
  enum class Kind : std::uint8_t { only_first, only_second, type, values, value };
  Kind kind = Kind::values;
  /// Of values: how many elements differ, and the greatest difference where they are numbers.
  std::int64_t elements = 0;
  std::int64_t of = 0;
  std::optional<double> greatest = std::nullopt;
  /// Of types and of values that are no tensors: what stands in each.
  std::string first = {};
  std::string second = {};
};

/// By name, tensors before other values. Layouts may differ. Values are equal bit for bit.
std::vector<Difference> diff_checkpoints(Files& files, const Opened& first, const Opened& second);

}  // namespace intarsia::checkpoint
