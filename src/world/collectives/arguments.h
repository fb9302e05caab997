// What collectives are given, checked. Each check throws a ValueError that quotes the values, and
// `where` in front. All come before the first call of the wire: a rank that throws later leaves
// the others waiting.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

#include "intarsia/world.h"
#include "world/collectives/wire.h"

namespace intarsia {

/// One tensor for each member in this process, and each dense. UnsupportedError for sparse ones.
void check_pieces(std::string_view where, const Comm& comm, at::TensorList pieces);

/// The dimension, counted from the front.
std::int64_t checked_dim(std::string_view where, std::int64_t dim, const at::Tensor& t);

/// Of what was given for all members, or for each of them one after the other, the lengths that
/// hold for one.
std::span<const std::int64_t> of_member(const Comm& comm, const Counts& all, std::size_t member);

/// Lengths of all ranks along a dimension: as given, or `each` for every rank.
Counts checked_lengths(std::string_view where, const Comm& comm,
                       std::span<const std::int64_t> given, std::int64_t each);

/// The length of each rank's part where all get equal ones. REQUIRES: it divides evenly, unless
/// lengths were given, which hold then.
std::int64_t equal_part(std::string_view where, const Comm& comm, std::int64_t length,
                        bool lengths_given);

/// The lengths must add up to that of each member's piece.
void check_total(std::string_view where, const Comm& comm, const Counts& all, at::TensorList pieces,
                 std::int64_t dim);

/// The piece of each member must be as long as the lengths say.
void check_own_lengths(std::string_view where, const Comm& comm, at::TensorList pieces,
                       std::int64_t dim, const Counts& all);

}  // namespace intarsia
