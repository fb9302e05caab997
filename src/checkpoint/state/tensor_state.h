// What checkpoints see of a program's tensors: their types, and the memory of their pieces.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/state/world_ranks.h"
#include "intarsia/checkpoint.h"

namespace intarsia::checkpoint {

/// Whether numbers keep their meaning in another such dtype: not those of 8 bits, which are
/// quantised ones, and whose scales are elsewhere.
bool is_plain_floating(at::ScalarType dtype);

/// The type of a tensor, distributed or plain; a plain one is replicated over the world. Errors
/// name it. `where` is the public function that was called.
TensorType type_of(std::string_view where, const World& world, const std::string& name,
                   const at::Tensor& tensor);
std::vector<SavedTensor> types_of(std::string_view where, const World& world,
                                  const NamedTensors& tensors);

/// UnsupportedError where tensors have no values.
void check_world(std::string_view where, const World& world);

/// The piece that a rank of this process holds of a tensor; undefined outside its mesh. That of a
/// plain tensor is the tensor, on every rank.
at::Tensor piece_of(const World& world, const at::Tensor& tensor, std::int64_t rank);

std::span<std::byte> memory_of(const at::Tensor& dense);

/// What one rank saves. Pieces that are not dense, or not on the CPU, are copied.
struct RankState {
  std::vector<at::Tensor> dense;
  std::vector<std::span<const std::byte>> pieces;
};
RankState state_of(const World& world, const NamedTensors& tensors, std::int64_t rank);

/// The tensors, those of floating point as copies in another dtype. ValueError for a dtype of
/// another kind, and in the native form.
NamedTensors converted(std::string_view where, const NamedTensors& tensors, CheckpointForm form,
                       std::optional<at::ScalarType> dtype);

/// ValueError that names a value that is no JSON.
Json values_json(std::string_view where, const CheckpointValues& values);

/// The form as manifests have it. ValueError for files of no bytes.
std::optional<std::uint64_t> hf_file_bytes(std::string_view where, CheckpointForm form,
                                           std::uint64_t file_bytes);

/// Makes a folder and those above it, if it can; that it is not there is told later.
void try_make_folders(const std::string& folder);

/// Runs a function of each rank that lives here: of this one, which talks on `comm`, or in lockstep
/// of all, as threads.
template <class Run>
void for_each_rank(World& world, const Comm& comm, const Run& run) {
  if (world.in_lockstep()) {
    for (const auto& thrown : run_ranks(world.size(), run)) {
      if (thrown) std::rethrow_exception(thrown);
    }
  } else if (!world.hosted().empty()) {
    WorldRanks ranks(world, comm);
    run(static_cast<Ranks&>(ranks));
  }
}

}  // namespace intarsia::checkpoint
