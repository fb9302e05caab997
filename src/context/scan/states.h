// States of runs on their way to the ranks behind, and gradients on the way back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "intarsia/collectives.h"
#include "intarsia/scan.h"
#include "intarsia/world.h"
#include "tensor/core/spec.h"

namespace intarsia::context {

/// The runs of a sequence, as the ranks along it hold them.
struct ScanRuns {
  struct Run {
    Range positions;
    std::size_t place = 0;  ///< of the rank that holds it
    std::size_t index = 0;  ///< among the runs of that rank
  };
  std::vector<Run> all;              ///< in the order of positions
  std::vector<std::size_t> counts;   ///< of runs, by place
  std::vector<std::size_t> members;  ///< the places of the hosted ranks
};

/// A state as a row of numbers: all runs have states of the same sizes.
struct StateShape {
  std::vector<std::vector<std::int64_t>> sizes;

  explicit StateShape(const ScanState& like);
  std::int64_t numel() const;
  at::Tensor packed(const ScanState& state) const;
  ScanState unpacked(const at::Tensor& row) const;
  friend bool operator==(const StateShape&, const StateShape&) = default;
};

/// What sends, and what it says of it. Nothing is sent where no axis shards the sequence.
struct StateSender {
  World* world = nullptr;
  Mesh mesh;
  std::vector<std::string> axes;
  std::string text;  ///< of the tensor that is scanned

  bool sends() const { return !axes.empty(); }
  Comm comm() const { return world->along(mesh, axes); }
  /// What `begin` gives when it has arrived; enters it in the bill.
  std::vector<at::Tensor> send(
      std::string transition,
      const std::function<Pending(const Comm& comm, const Call& call)>& begin) const;
};

/// By hosted rank: [runs of that rank, numbers of a state].
using StateRows = std::vector<at::Tensor>;

/// One all_gather of all states; each rank combines those before its own.
class GatheredStates {
 public:
  StateRows forward(const StateSender& to, const ScanRuns& runs,
                    const std::vector<StateShape>& shapes, const ScanLayer& layer,
                    const StateRows& own);
  StateRows backward(const StateSender& to, const StateRows& grads) const;

 private:
  std::vector<std::int64_t> lengths_;  // of rows, by place, for each hosted rank
  std::vector<at::Tensor> joined_;     // by hosted rank: leaves of the graphs that end in made_
  std::vector<at::Tensor> made_;
};

/// Each rank passes on what it knows to the rank 1, then 1, 2, 4, ... behind. REQUIRES: no rank has
/// two runs, and runs follow each other as places do.
class PassedStates {
 public:
  StateRows forward(const StateSender& to, const ScanRuns& runs,
                    const std::vector<StateShape>& shapes, const ScanLayer& layer,
                    const StateRows& own);
  StateRows backward(const StateSender& to, const StateRows& grads) const;

 private:
  /// What a hosted rank made in one step, of what came and what it had.
  struct Made {
    enum class How : std::uint8_t { kept, taken, combined } how = How::kept;
    at::Tensor came, had, made;  // of a graph, if combined
  };
  struct Step {
    std::int64_t distance = 1;
    std::vector<Made> by_member;
  };
  std::vector<at::Tensor> pass(const StateSender& to, const std::vector<at::Tensor>& rows,
                               std::int64_t distance) const;

  std::vector<Step> steps_;
  std::vector<bool> has_run_;  // by hosted rank
};

/// The states of all runs before each run, combined. The row of the first run does not matter.
///
/// COLLECTIVE: `forward` and `backward`, all ranks of the mesh, in the same order.
class StatesBefore {
 public:
  /// `shapes`: by hosted rank.
  StatesBefore(StateSender sender, ScanRuns runs, std::vector<StateShape> shapes, ScanLayer layer,
               ScanSchedule schedule);

  StateRows forward(const StateRows& own);
  /// The gradients of what forward was given, from those of what it gave.
  StateRows backward(const StateRows& grads) const;
  const StateShape& shape(std::size_t member) const { return shapes_[member]; }

 private:
  StateSender sender_;
  ScanRuns runs_;
  std::vector<StateShape> shapes_;
  ScanLayer layer_;
  std::variant<GatheredStates, PassedStates> way_;
};

}  // namespace intarsia::context
