// Parcels: which parts of tensors go from rank to rank when a boundary is crossed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/world.h"
#include "pipeline/run/boundary.h"
#include "tensor/move/route.h"

namespace intarsia::pipeline {

/// What one rank exchanges with another for a boundary: parts of its pieces, one after the other in
/// a buffer of bytes.
struct Parcel {
  struct Slice {
    std::size_t value = 0;
    std::int64_t offset = 0;  ///< in the buffer, in bytes
    Shape sizes;              ///< of the piece, or of the part of it that goes
    /// Where blocks of the part are in the old and in the new piece. None where the piece goes as
    /// it is.
    std::optional<Part> part = std::nullopt;
  };
  std::int64_t peer = 0;  ///< a rank
  std::int64_t bytes = 0;
  std::vector<Slice> slices;
};

/// All that one rank sends, or receives, for a boundary.
struct Parcels {
  Boundary boundary;
  std::vector<Parcel> list;
  std::vector<Shape> pieces;  ///< by value: the sizes of the piece of this rank
  std::int64_t marks = 0;     ///< bytes at the beginning of each buffer: which values are there
};

/// The parcels of boundaries between two meshes, each made once.
///
/// A rank exchanges its piece with the rank at the same coordinate, where the meshes have the same
/// axes; otherwise with those that have, or need, parts of it.
class ParcelTable {
 public:
  /// `may_miss`: of what a boundary says some may be undefined, as gradients are.
  ParcelTable(World& world, Mesh from, Mesh to, bool may_miss);

  std::shared_ptr<const Parcels> of(const Boundary& boundary, bool sending);

 private:
  Parcels made(const Boundary& boundary, bool sending) const;

  World& world_;
  Mesh from_;
  Mesh to_;
  bool may_miss_;
  std::map<std::string, std::shared_ptr<const Parcels>> known_;
};

}  // namespace intarsia::pipeline
