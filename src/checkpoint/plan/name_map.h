// NameMap: how the tensors of a checkpoint become those of a model, as data: renamed, joined,
// split, stacked, transposed. docs/checkpoints.md shows the form.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "intarsia/boxes.h"

namespace intarsia::checkpoint {

/// One rule. Names are patterns: `*` stands for any text without dots, the same on both sides; `#`
/// for the numbers from 0 on. Either side may have several names, or a `#`, but not both.
struct MapRule {
  std::vector<std::string> from;
  std::vector<std::string> to;
  /// Along which dimension several are joined, or stacked.
  std::int64_t dim = 0;
  bool stacks = false;
  /// In what proportion several share the dimension; empty: evenly.
  std::vector<std::int64_t> sizes;
  /// Dimension i of `to` is this one of `from`; empty: as it is. Only of one name to one.
  std::vector<std::int64_t> order;
};

/// A range of a saved tensor along a dimension, and where it is in a mapped one.
struct MappedBlock {
  std::size_t tensor = 0;  ///< index in the list
  Range from;
  Range to;
};

/// A tensor of the model, as blocks of saved ones.
struct MappedTensor {
  enum class Kind : std::uint8_t {
    same,      ///< one saved tensor, with its dimensions in another order perhaps
    joined,    ///< blocks along `dim`, all of one saved tensor or a range of it
    stacked,   ///< `dim` is one that the saved ones do not have
    unstacked  ///< `dim` is one that only the saved one has
  };
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  Kind kind = Kind::same;
  std::int64_t dim = 0;
  std::vector<std::int64_t> order;
  std::vector<MappedBlock> blocks;

  /// Whether it is a saved tensor as it is, under another name at most.
  bool is_saved() const { return kind == Kind::same && order.empty(); }
};

class NameMap {
 public:
  /// No rules: all names stay.
  NameMap() = default;
  /// Reads a JSON list of rules. FileError that names the rule where it is none.
  static NameMap parse(std::string_view file, std::string_view text);
  /// From the model to the checkpoint.
  NameMap reversed() const;

  bool empty() const { return rules_.empty(); }

  /// The model's tensors. A saved tensor that no rule names stays as it is; the first rule that
  /// names it takes it. ValueError that names the rule where it names nothing, where one of its
  /// tensors is missing or has other sizes than it needs, and for a name that comes twice.
  std::vector<MappedTensor> apply(std::span<const SavedTensor> tensors) const;

 private:
  std::vector<MapRule> rules_;
};

}  // namespace intarsia::checkpoint
