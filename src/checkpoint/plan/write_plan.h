// WritePlan: which rank writes which part of which tensor.
//
// Pure: every rank can tell what any other writes, without a message, and at a cost that does not
// grow with the number of ranks. Ranks that hold the same share the writing evenly: their tensors
// are laid end to end, and each writes its share of that line. The line is measured in bytes of
// full tensors, so that it is the same line for all shards.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/plan/part.h"

namespace intarsia::checkpoint {

/// What one rank writes of a tensor: these rows of the piece that it holds.
struct Share {
  std::size_t tensor = 0;  ///< index in the plan's list
  Range rows;              ///< local, along the row dimension of the piece
  Part part;               ///< the same, as global indices
};

/// A part of a tensor, and who has written it.
struct Holder {
  std::int64_t rank = 0;
  Part part;
};

class WritePlan {
 public:
  /// A piece with fewer bytes than this is written by one rank: many short tensors are not made
  /// shorter still.
  static constexpr std::uint64_t kLeastShared = std::uint64_t{1} << 20;

  /// REQUIRES: no layout is partial; `tensors` stays where it is. Another `least_shared` than the
  /// format's is for tests.
  explicit WritePlan(std::span<const SavedTensor> tensors,
                     std::uint64_t least_shared = kLeastShared);

  /// Sets of tensors that are replicated along the same axes of the same mesh. Ranks that hold the
  /// same pieces of the tensors of a line share its writing, and must hold the same values.
  std::size_t lines() const { return lines_.size(); }
  std::size_t line_of(std::size_t tensor) const { return places_[tensor].line; }
  /// How many ranks share a line.
  std::int64_t sharers(std::size_t line) const { return lines_[line].ranks; }
  /// The first of the ranks that share a line with this one, itself perhaps; nullopt for a rank
  /// outside the line's mesh.
  std::optional<std::int64_t> first_sharer(std::size_t line, std::int64_t rank) const;

  /// What a rank writes, in the order of the list. Parts without elements are left out.
  std::vector<Share> of_rank(std::int64_t rank) const;

  /// Who writes what of the elements `wanted` of a tensor. Each holder has at least one of them.
  std::vector<Holder> holders(std::size_t tensor, const Part& wanted) const;

 private:
  /// Tensors that are replicated along the same axes of the same mesh.
  struct Line {
    std::uint64_t bytes = 0;
    Mesh mesh;
    std::vector<std::size_t> axes;  // along which they are replicated
    std::int64_t ranks = 1;         // that share it
  };
  struct Place {
    std::size_t line = 0;
    std::uint64_t begin = 0;
    std::uint64_t bytes = 0;
    bool shared = false;
  };
  Range rows_of(const Place& place, std::int64_t sharer, std::int64_t rows) const;
  std::uint64_t boundary(const Line& line, std::int64_t sharer) const;
  std::int64_t sharer_at(const Line& line, std::uint64_t position) const;

  std::span<const SavedTensor> tensors_;
  std::vector<Line> lines_;
  std::vector<Place> places_;  // one for each tensor
};

/// What a part is called in the file of its writer: the tensor's name, and which part it is unless
/// it is all of it.
std::string part_name(const SavedTensor& tensor, const Part& part);

}  // namespace intarsia::checkpoint
