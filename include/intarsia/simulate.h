// Simulated worlds: one process plays one rank of a world of any size, without values.
//
// For questions that need no values: does this model with these layouts run on 16,384 ranks, what
// does a rank hold, what does it send. The pieces of distributed tensors are on torch's meta
// device, which knows sizes and dtypes alone. Ops, autograd, modules and optimizers work as
// everywhere; collectives give tensors of the right sizes at once, send nothing, and enter ledger
// and bill with the bytes that the rank would hand over. `predict` asks the usual questions at
// once.
//
// Tensors say that they are on the world's device, so that torch picks the same kernels as in a
// real world of it. What depends on values is refused: item(), nonzero(), masks as indices.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "intarsia/world.h"

namespace intarsia {

struct SimulateOptions {
  /// How many ranks the world has.
  std::int64_t size = 1;
  /// The one that this process plays.
  std::int64_t rank = 0;
  /// The backend that is played, "gloo", "nccl" or "shm": it decides which collectives a reduction
  /// is made of, and so the bytes and the buffers.
  std::string backend = "gloo";
  /// How many calls the ledger keeps.
  std::size_t ledger_entries = 4096;
};

/// A world in which nothing is sent. Its random numbers leave torch's generators alone.
std::shared_ptr<World> simulate(const SimulateOptions& options);

}  // namespace intarsia
