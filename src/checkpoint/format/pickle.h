// Reading pickles without executing anything. Others keep checkpoints in them; here a class is only
// a name, which must be among those that the caller knows, and an object is what it was made from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace intarsia::checkpoint {

struct Pickled;
using PickledPtr = const Pickled*;

/// A value of a pickle.
struct Pickled {
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    number,
    text,
    bytes,
    list,
    tuple,
    dict,        ///< keys and values in turns
    global,      ///< a class or function: `module name`
    object,      ///< what it was made by, the arguments, and the state if it has one
    persistent,  ///< a reference to something outside
  };
  Kind kind = Kind::none;
  std::int64_t integer = 0;  ///< also of booleans
  double number = 0;
  std::string text = {};  ///< also of bytes and globals
  std::vector<PickledPtr> items = {};

  bool is(Kind other) const { return kind == other; }
  /// The value of a key, null if there is none. REQUIRES: a dict.
  const Pickled* find(std::string_view key) const;
  /// Whether it is an object of this class, `module name`.
  bool is_object_of(std::string_view global) const;
  /// The state of an object, or null.
  const Pickled* state() const { return items.size() > 2 ? items[2] : nullptr; }
};

/// A pickle that was read. Values may be shared, and contain themselves.
struct Pickle {
  PickledPtr value = nullptr;
  /// Where all of them are; they stay there when it moves.
  std::deque<Pickled> values = {};
};

/// Reads one pickle. FileError that names the file and the byte for an opcode that is not known
/// here, for a class that is not `allowed` (given as `module name`), and for what does not fit
/// together.
Pickle parse_pickle(std::string_view file, std::span<const std::byte> bytes,
                    const std::function<bool(std::string_view global)>& allowed);

}  // namespace intarsia::checkpoint
