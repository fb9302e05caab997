// States of known numbers, in any layouts: what each rank holds of them, and whether it is right.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <random>

#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/plan/part.h"
#include "checkpoint/session/load_step.h"
#include "checkpoint/session/save_step.h"
#include "checkpoint/transfer/read_parts.h"

namespace intarsia::testing {

using Bytes = std::vector<std::byte>;
using checkpoint::SavedTensor;

inline SavedTensor saved(std::string name, const char* type, const char* mesh) {
  return {std::move(name), TensorType::parse(type, Mesh::parse(mesh))};
}

/// Element `index` of a tensor in version `version` of a state.
inline void fill_element(std::byte* at, std::int64_t bytes, const std::string& name,
                         std::int64_t index, std::uint64_t version) {
  for (std::int64_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word =
        hash_mix(hash_text(name) + version, static_cast<std::uint64_t>(index * 2 + i / 8));
    std::memcpy(at + i, &word, static_cast<std::size_t>(std::min<std::int64_t>(8, bytes - i)));
  }
}

/// What the rank holds of a tensor, element by element.
inline Bytes made_piece(const SavedTensor& tensor, std::int64_t rank, std::uint64_t version) {
  const TensorType& type = tensor.type;
  const auto at = type.layout.mesh().coordinate_of(rank);
  if (!at) return {};
  const Boxes held = boxes(type.layout, type.shape, *at);
  const std::int64_t bytes = checkpoint::element_bytes(type.dtype);
  std::vector<std::vector<std::int64_t>> indices;
  for (std::size_t d = 0; d < held.dims(); ++d) {
    auto& list = indices.emplace_back();
    for (const Range& run : held.runs(d)) {
      for (std::int64_t i = run.begin; i < run.end; ++i) list.push_back(i);
    }
  }
  Bytes out(static_cast<std::size_t>(held.numel() * bytes));
  for (std::int64_t local = 0; local < held.numel(); ++local) {
    std::int64_t rest = local;
    std::int64_t global = 0;
    std::int64_t stride = 1;
    for (std::size_t d = held.dims(); d-- > 0;) {
      const auto n = static_cast<std::int64_t>(indices[d].size());
      global += indices[d][static_cast<std::size_t>(rest % n)] * stride;
      stride *= type.shape[d];
      rest /= n;
    }
    fill_element(out.data() + local * bytes, bytes, tensor.name, global, version);
  }
  return out;
}

/// The same, remembered: campaigns ask for it very often.
inline const Bytes& piece_of(const SavedTensor& tensor, std::int64_t rank, std::uint64_t version) {
  static std::mutex mutex;
  static std::map<std::string, Bytes> known;
  const std::string key =
      concat(tensor.name, ' ', tensor.type, ' ', tensor.type.layout, ' ', rank, ' ', version);
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace(key);
  if (is_new) found->second = made_piece(tensor, rank, version);
  return found->second;
}

/// All pieces of a rank.
struct HeldState {
  HeldState(std::span<const SavedTensor> tensors, std::int64_t rank, std::uint64_t version) {
    for (const SavedTensor& tensor : tensors) memory.push_back(piece_of(tensor, rank, version));
    for (const Bytes& each : memory) pieces.emplace_back(each);
  }
  std::vector<Bytes> memory;
  std::vector<std::span<const std::byte>> pieces;
};

inline void save(checkpoint::Files& files, checkpoint::Ranks& ranks,
                 std::span<const SavedTensor> tensors, std::int64_t step, std::uint64_t version,
                 const checkpoint::SaveOptions& options = {},
                 std::optional<std::uint64_t> hf_file_bytes = {}) {
  const HeldState held(tensors, ranks.rank(), version);
  const checkpoint::StepState state{.tensors = tensors,
                                    .pieces = held.pieces,
                                    .values = {{"version", version}},
                                    .hf_file_bytes = hf_file_bytes};
  checkpoint::save_step(
      files, ranks, "/root", step, [&] { return state; }, options);
}

/// Loads a step into other layouts of the same tensors on every rank of a world, and gives the
/// first difference from what it should be; empty when there is none.
inline std::string load_difference(checkpoint::Files& files, const std::string& folder,
                                   const checkpoint::Manifest& manifest,
                                   std::span<const SavedTensor> into, std::int64_t world,
                                   std::uint64_t version,
                                   const checkpoint::ReadOptions& options = {}) {
  for (std::int64_t rank = 0; rank < world; ++rank) {
    std::vector<Bytes> memory;
    std::vector<checkpoint::Wanted> wanted;
    memory.reserve(into.size());
    for (const SavedTensor& tensor : into) {
      const auto found = std::find_if(manifest.tensors.begin(), manifest.tensors.end(),
                                      [&](const auto& each) { return each.name == tensor.name; });
      if (found == manifest.tensors.end()) return concat("no ", tensor.name);
      const auto at = tensor.type.layout.mesh().coordinate_of(rank);
      if (!at) continue;
      const Boxes held = boxes(tensor.type.layout, tensor.type.shape, *at);
      memory.emplace_back(checkpoint::bytes_of(tensor.type.dtype, held.local_shape()));
      wanted.push_back({static_cast<std::size_t>(found - manifest.tensors.begin()),
                        checkpoint::part_of(held), memory.back()});
    }
    checkpoint::read_parts(files, folder, manifest, wanted, options);
    std::size_t next = 0;
    for (const SavedTensor& tensor : into) {
      if (!tensor.type.layout.mesh().contains(rank)) continue;
      if (memory[next++] != piece_of(tensor, rank, version)) {
        return concat("'", tensor.name, "' differs on rank ", rank);
      }
    }
  }
  return {};
}

inline std::string load_difference(checkpoint::Files& files, const std::string& folder,
                                   std::span<const SavedTensor> into, std::int64_t world,
                                   std::uint64_t version,
                                   const checkpoint::ReadOptions& options = {}) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(files, folder);
  if (manifest.values["version"] != version) return "another version";
  return load_difference(files, folder, manifest, into, world, version, options);
}

/// What a rank threw, as text; empty if nothing.
inline std::string text_of(const std::exception_ptr& thrown) {
  if (!thrown) return {};
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "crash";
  }
}

/// Random layouts, from one seed.
class RandomStates {
 public:
  explicit RandomStates(std::uint64_t seed) : engine_(seed) {}

  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(engine_);
  }

  Mesh mesh(std::int64_t world) {
    std::vector<Axis> axes;
    std::int64_t left = world;
    for (const char* name : {"a", "b", "c"}) {
      const std::int64_t size = pick(1, left);
      axes.push_back({name, size});
      left /= size;
    }
    axes.resize(static_cast<std::size_t>(pick(0, 3)));
    std::int64_t size = 1;
    for (const Axis& axis : axes) size *= axis.size;
    return Mesh(axes, pick(0, world - size));
  }

  Layout layout(const Mesh& mesh, std::size_t dims) {
    std::vector<Placement> placements;
    std::map<int, std::vector<std::string>> order;
    for (std::size_t a = 0; a < mesh.axes(); ++a) {
      const auto dim = static_cast<int>(pick(0, std::max<std::int64_t>(dims, 1) - 1));
      const std::int64_t kind = dims == 0 ? 0 : pick(0, 3);
      placements.push_back(kind < 2    ? Placement::replicate()
                           : kind == 2 ? Placement::shard(dim)
                                       : Placement::strided_shard(dim, pick(1, 3)));
      if (placements.back().is_shard()) order[dim].push_back(mesh.name(a));
    }
    LayoutOptions options;
    for (auto& [dim, names] : order) {
      std::shuffle(names.begin(), names.end(), engine_);
      options.order.emplace_back(dim, names);
    }
    return Layout(mesh, placements, options);
  }

  SavedTensor tensor(const std::string& name, std::int64_t world) {
    SavedTensor out{name, {}};
    out.type.dtype = static_cast<DType>(pick(0, 17));
    const auto dims = pick(0, 3);
    for (std::int64_t d = 0; d < dims; ++d) out.type.shape.push_back(pick(0, 9));
    out.type.layout = layout(mesh(world), out.type.shape.size());
    return out;
  }

  /// The same tensor in another layout of a world.
  SavedTensor elsewhere(const SavedTensor& tensor, std::int64_t world) {
    SavedTensor out = tensor;
    out.type.layout = layout(mesh(world), tensor.type.shape.size());
    return out;
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace intarsia::testing
