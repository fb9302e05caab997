// Walking over the values of saved tensors, in the order of their elements, with little memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files/files.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/plan/part.h"

namespace intarsia::checkpoint {

/// Rows of a tensor that follow each other.
struct Rows {
  std::size_t tensor = 0;  ///< index in the manifest
  Part part;
  std::uint64_t bytes = 0;
};

/// Visits the tensors with these indices one after the other, each by ascending rows, some 32 MiB
/// at a time, or one row if that is longer. Tensors without elements have none.
void for_each_batch(const Manifest& manifest, std::span<const std::size_t> tensors,
                    const std::function<void(std::span<const Rows>)>& visit);

/// Reads rows, one after the other. The buffer is used again.
void read_rows(Files& files, const std::string& folder, const Manifest& manifest,
               std::span<const Rows> rows, bool verify, std::vector<std::byte>& buffer);

/// Both: `visit` gets the values of some rows of a tensor.
void for_each_block(
    Files& files, const std::string& folder, const Manifest& manifest,
    std::span<const std::size_t> tensors, bool verify,
    const std::function<void(std::size_t tensor, std::span<const std::byte> values)>& visit);

}  // namespace intarsia::checkpoint
