// What is known of ops by their names, besides their rules: one table.
#pragma once

#include <cstdint>
#include <string_view>

namespace intarsia {

/// Bits that one op may have several of. Names are those of the table of rules: `add` stands for
/// `aten::add_` too.
enum OpTrait : std::uint16_t {
  kLike = 1,                ///< makes a new tensor after another one
  kResizes = 2,             ///< in place: gives the tensor other sizes or memory
  kReshapes = 4,            ///< in place: makes the tensor a view of itself
  kRandom = 8,              ///< returns random numbers, by global index
  kRandomInPlace = 16,      ///< the same, in place
  kUpdatesStatistics = 32,  ///< writes `running_mean` and `running_var`, which are no results
  kElementwiseList = 64,    ///< as `_foreach_...`: does the same to every element
  kOverwrites = 128,        ///< in place: writes all of the tensor and reads nothing of it
  kInitialises = 256,       ///< in place: what modules set their parameters with
  kReadsBefore = 512,       ///< such an op that makes something of the values there were before
};

/// Whether the op, by its name without namespace and `_`, has the trait.
bool has_trait(std::string_view base_name, OpTrait trait);

/// `aten::add_` -> `add`, `aten::_foreach_add_` -> `_foreach_add`.
std::string_view base_of(std::string_view name);

/// The op that does the same under a name that has a rule: itself, for nearly all.
std::string_view known_as(std::string_view base_name);

}  // namespace intarsia
