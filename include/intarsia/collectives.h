// Collectives over the groups of a Comm.
//
// Every function takes one tensor for each member of the Comm that lives in this process (with one
// rank per process: one tensor) and returns a Pending with as many results. Inputs are never
// changed; they may be read until the Pending has been waited for, so the caller must not write to
// them before. Lengths are part of layouts, so every rank knows them: none is sent.
//
// A group of one rank communicates nothing and gives the input back. A process that hosts no
// member of the group does nothing and gets an empty result. In lockstep, where all ranks live in
// one process, a call acts on all groups of the Comm at once, and is done when it returns.
//
// Any dtype may be moved. Reductions that a backend lacks or does badly (bool, products of complex
// numbers, half precision on Gloo, 16-bit integers, min and max of floats, norms) are done by
// exchanging partial values and combining them in the order of ranks; an all_reduce of that kind
// waits for its first half before it returns. Those that make no sense for a dtype are refused.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <span>
#include <vector>

#include "intarsia/ledger.h"
#include "intarsia/placement.h"
#include "intarsia/world.h"

namespace intarsia {

/// The result of a collective that may still be under way. It owns the buffers until it has been
/// waited for. If it is dropped before, its destructor waits. While an exception passes by, the
/// destructor does not wait, and leaves the buffers to the group.
class Pending {
 public:
  /// The results, one per member. Blocks until they are there; later calls return them again.
  /// WorldError when another rank failed or did not come in time; later calls throw it again.
  const std::vector<at::Tensor>& wait();
  /// The one result. REQUIRES: exactly one member.
  at::Tensor tensor();
  /// Whether `wait` would return at once.
  bool done() const;

  Pending(Pending&&) noexcept;
  Pending& operator=(Pending&&) noexcept;
  ~Pending();

  /// For the collectives, which make it.
  struct State;
  explicit Pending(std::unique_ptr<State> state);

 private:
  friend Pending after(Pending, std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>);
  std::unique_ptr<State> state_;
};

using Where = std::source_location;

/// The pieces of all ranks, joined along `dim`. `lengths`: of each rank's piece along `dim`; when
/// left out, all are as long as this one. COLLECTIVE: all ranks of the group, in the same order;
/// likewise below. In lockstep, where lengths may differ from group to group, they may be given for
/// each member of the Comm, one after the other.
Pending all_gather(const Comm& comm, at::TensorList pieces, std::int64_t dim,
                   std::span<const std::int64_t> lengths = {}, const Call& call = {},
                   Where where = Where::current());

/// The reduction of all ranks' partial values, on every rank. `how` is a partial placement, such as
/// P(sum).
Pending all_reduce(const Comm& comm, at::TensorList partials, const Placement& how,
                   const Call& call = {}, Where where = Where::current());

/// The reduction of all ranks' partial values, of which each rank gets the part along `dim` that
/// `lengths` gives it; when left out, equal parts.
Pending reduce_scatter(const Comm& comm, at::TensorList partials, std::int64_t dim,
                       const Placement& how, std::span<const std::int64_t> lengths = {},
                       const Call& call = {}, Where where = Where::current());

/// Splits each piece along `split_dim` into parts of `split_lengths`, one for each rank, and joins
/// what arrives along `join_dim`, where the part from rank i is `join_lengths[i]` long. Lengths
/// left out: equal parts, which must then divide evenly. Where the two are one dimension, ranks may
/// split by different lengths.
Pending all_to_all(const Comm& comm, at::TensorList pieces, std::int64_t split_dim,
                   std::int64_t join_dim, std::span<const std::int64_t> split_lengths = {},
                   std::span<const std::int64_t> join_lengths = {}, const Call& call = {},
                   Where where = Where::current());

/// The tensor of the rank at `root` of the group. Others pass a tensor of the same shape and dtype,
/// whose values do not matter.
Pending broadcast(const Comm& comm, at::TensorList tensors, std::int64_t root,
                  const Call& call = {}, Where where = Where::current());

/// Sends each piece to the rank at `to[i]` of the group, where i is the sender's place.
/// `shapes[i]`: the shape that rank i sends; when left out, all shapes are equal. REQUIRES: `to` is
/// a permutation.
Pending permute(const Comm& comm, at::TensorList pieces, std::span<const std::int64_t> to,
                std::span<const std::vector<std::int64_t>> shapes = {}, const Call& call = {},
                Where where = Where::current());

/// Returns when all ranks of the group have called it. On accelerators it uses the world's device.
void barrier(const Comm& comm, const Call& call = {}, Where where = Where::current());

}  // namespace intarsia
