// Scans: layers that carry a state along a sequence which is sharded.
//
// Linear attention, state-space layers and delta rules read a sequence from front to back and keep
// a state, whose size does not depend on the length. What a run of positions does to the state is a
// small value too, and of two runs that follow each other it is a combination of theirs. So each
// rank makes that value for its positions, the values are exchanged, and each rank knows what
// everything before it has done. Nothing that is as long as the sequence travels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "intarsia/sequence_order.h"

namespace intarsia {

/// What stands for a run of positions: tensors of one dtype, whose sizes depend neither on the run
/// nor on the rank along the sequence.
using ScanState = std::vector<at::Tensor>;

/// A layer, by what it does to plain tensors: a run of positions of those that go `along` the
/// sequence, and the pieces of the `others`. Autograd differentiates the three functions, which
/// must use no tensor that wants a gradient but those that they are given.
///
/// For `h[t] = decay[t] * h[t - 1] + input[t]`, with input and decay along the sequence:
///   summary: the state {product of all decays, last h}, h being 0 before the run; kept: running
///   products of decays, and all h
///   combine: {a.decays * b.decays, b.decays * a.h + b.h}
///   outputs: {h + products * before.h}
struct ScanLayer {
  using Tensors = std::vector<at::Tensor>;
  struct Summary {
    ScanState state;    ///< stands for the run
    Tensors kept = {};  ///< what `outputs` of this run can use again
  };
  std::function<Summary(const Tensors& along, const Tensors& others)> summary;
  /// Of two runs, the second right behind the first. Associative.
  std::function<ScanState(const ScanState& before, const ScanState& after)> combine;
  /// The outputs for a run; `before` stands for all positions before it, and is unset for the
  /// first. Each has the positions of the run where the inputs have them.
  std::function<Tensors(const Tensors& along, const Tensors& others, const Tensors& kept,
                        const std::optional<ScanState>& before)>
      outputs;
};

/// How states get to the ranks behind.
///
///   gather    one all_gather: each rank gets the state of every run, and combines those before it
///   doubling  each rank passes on what it knows over 1, 2, 4, ... ranks: 1 + log2(ranks) steps
///   auto      the cheaper by the world's topology: gather for small states, doubling for large
///             ones on many ranks
enum class ScanSchedule : std::uint8_t { automatic, gather, doubling };
std::string to_string(ScanSchedule schedule);
ScanSchedule parse_scan_schedule(std::string_view text);

struct ScanOptions {
  /// The dimension of the sequence, in all tensors along it and in the outputs.
  std::int64_t dim = 1;
  ScanSchedule schedule = ScanSchedule::automatic;
  /// In which order the sequence is stored: states go from position to position, not from place to
  /// place. A rank may hold several runs. The schedule is then gather.
  SequenceOrder order = {};
};

/// Runs a layer over a sequence. `along`: tensors [.., sequence, ..], laid out as the first of them
/// in the dimensions in which it is sharded; `others`: parameters, which keep their layouts, but
/// replicated along the sequence. The outputs are laid out as the first of `along`.
/// Differentiable, once. On plain tensors it is the layer from the first position to the last.
///
/// ValueError for outputs or states of other sizes, and for a function that uses a tensor which
/// wants a gradient and is not among its arguments: its gradient would be lost.
/// COLLECTIVE: all ranks of the mesh, where the sequence is sharded.
std::vector<at::Tensor> scan(const ScanLayer& layer, const std::vector<at::Tensor>& along,
                             const std::vector<at::Tensor>& others = {},
                             const ScanOptions& options = {});

/// h[t] = decay[t] * h[t - 1] + input[t] along a dimension, with 0 before the first position: the
/// recurrence of state-space layers. `decay` has the sizes of `input`, or 1 in some dimensions.
at::Tensor linear_recurrence(const at::Tensor& decay, const at::Tensor& input,
                             const ScanOptions& options = {});

/// That layer, as one for `scan`.
ScanLayer linear_recurrence_layer(std::int64_t dim);

}  // namespace intarsia
