#include "intarsia/checkpoint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/text.h"
#include "checkpoint/session/agree.h"
#include "checkpoint/session/load_step.h"
#include "checkpoint/session/save_step.h"
#include "checkpoint/session/thread_ranks.h"
#include "checkpoint/state/world_ranks.h"
#include "checkpoint/transfer/read_parts.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/core/impl.h"
#include "tensor/move/state.h"
#include "tensor/move/write_through.h"
#include "world/transport/dtype.h"

namespace intarsia {
namespace {

using checkpoint::Json;
using checkpoint::local_files;
using checkpoint::Manifest;
using checkpoint::SavedTensor;

constexpr std::string_view kSave = "save_checkpoint";
constexpr std::string_view kLoad = "load_checkpoint";

/// The type of a tensor, distributed or plain; a plain one is replicated over the world.
TensorType type_of(std::string_view where, const World& world, const std::string& name,
                   const at::Tensor& tensor) {
  if (!tensor.defined()) fail<ValueError>(where, "'", name, "' is an undefined tensor");
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype || tensor.layout() != at::kStrided || tensor.is_meta()) {
    fail<UnsupportedError>(where, "'", name, "' is ", describe(tensor),
                           ", of a kind that no checkpoint holds");
  }
  TensorType type{*dtype, {}, Layout::replicated(checkpoint::mesh_of_all(world))};
  if (tensor.dim() > static_cast<std::int64_t>(kMaxDims)) {
    fail<UnsupportedError>(where, "'", name, "' has more than ", kMaxDims, " dimensions");
  }
  for (const std::int64_t size : tensor.sizes()) type.shape.push_back(size);
  if (has_layout(tensor)) {
    if (&world_of(tensor) != &world) {
      fail<ValueError>(where, "'", name, "' is a tensor of another world");
    }
    type.layout = layout_of(tensor);
  }
  return type;
}

void check_world(std::string_view where, const World& world) {
  if (world.simulated()) {
    fail<UnsupportedError>(where, "tensors of a simulated world have no values to save or load");
  }
}

/// The piece that a rank of this process holds of a tensor; undefined outside its mesh. That of a
/// plain tensor is the tensor, on every rank.
at::Tensor piece_of(const World& world, const at::Tensor& tensor, std::int64_t rank) {
  if (!has_layout(tensor)) return tensor.detach();
  const DistributedImpl& impl = impl_of(tensor);
  const Mesh& mesh = impl.spec()->layout.mesh();
  if (!mesh.contains(rank)) return {};
  std::size_t place = 0;
  for (const std::int64_t other : world.hosted()) {
    if (other == rank) break;
    place += mesh.contains(other) ? 1 : 0;
  }
  return impl.pieces().at(place);
}

/// The memory of a tensor was written: as if an op had done it.
void note_written(const at::Tensor& tensor) {
  if (has_layout(tensor)) {
    DistributedImpl& impl = impl_of(tensor);
    impl.state().note_write(impl);
    if (impl.extra()) write_through(impl, kLoad);
  }
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

std::span<std::byte> memory_of(const at::Tensor& dense) {
  return {static_cast<std::byte*>(dense.data_ptr()), dense.nbytes()};
}

/// What one rank saves. Pieces that are not dense, or not on the CPU, are copied.
struct RankState {
  std::vector<at::Tensor> dense;
  std::vector<std::span<const std::byte>> pieces;
};

RankState state_of(const World& world, const NamedTensors& tensors, std::int64_t rank) {
  RankState out;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor piece = piece_of(world, tensor, rank);
    out.dense.push_back(piece.defined() ? piece.resolve_conj().resolve_neg().cpu().contiguous()
                                        : at::empty({0}, at::kByte));
    out.pieces.emplace_back(memory_of(out.dense.back()));
  }
  return out;
}

Json values_json(const CheckpointValues& values) {
  Json out = Json::object();
  for (const auto& [name, text] : values) {
    try {
      out[name] = Json::parse(text);
    } catch (const Json::exception&) {
      fail<ValueError>(kSave, "the value '", name, "' is no JSON: ", text);
    }
  }
  return out;
}

CheckpointContents contents_of(const Manifest& manifest) {
  CheckpointContents out{.step = manifest.step, .tensors = {}, .values = {}};
  for (const SavedTensor& tensor : manifest.tensors) out.tensors.emplace(tensor.name, tensor.type);
  for (const auto& [name, value] : manifest.values.items()) out.values[name] = value.dump();
  return out;
}

void rethrow_first(const std::vector<std::exception_ptr>& thrown) {
  for (const auto& each : thrown) {
    if (each) std::rethrow_exception(each);
  }
}

/// Runs a function of each rank that lives here: of this one, or in lockstep of all, as threads.
template <class Run>
void for_each_rank(World& world, const Run& run) {
  if (world.in_lockstep()) {
    rethrow_first(checkpoint::run_ranks(world.size(), run));
  } else if (!world.hosted().empty()) {
    checkpoint::WorldRanks ranks(world);
    run(static_cast<checkpoint::Ranks&>(ranks));
  }
}

std::int64_t newest_step(const std::string& folder) {
  const auto steps = checkpoint::steps_in(local_files(), folder);
  if (steps.empty()) fail<FileError>(kLoad, folder, ": there are no checkpoints");
  return steps.back();
}

/// The step that rank 0 sees last, for all.
std::int64_t agreed_step(checkpoint::Ranks& ranks, const std::string& folder) {
  return checkpoint::agree(
             ranks, [] { return Json(); },
             [&](const std::vector<Json>&) { return Json(newest_step(folder)); },
             [] { return std::string(); })
      .get<std::int64_t>();
}

/// Refuses, with all names, what a step and the tensors that are to be loaded do not share.
void check_fit(const World& world, const CheckpointContents& contents, const NamedTensors& tensors,
               bool strict) {
  std::vector<std::string> missing;
  std::vector<std::string> others;
  std::set<std::string> asked;
  for (const auto& [name, tensor] : tensors) {
    if (!asked.insert(name).second) fail<ValueError>(kLoad, "'", name, "' is asked for twice");
    const TensorType type = type_of(kLoad, world, name, tensor);
    const auto found = contents.tensors.find(name);
    if (found == contents.tensors.end()) {
      missing.push_back(name);
    } else if (found->second.dtype != type.dtype || found->second.shape != type.shape) {
      others.push_back(concat("'", name, "' is ", to_text(found->second.dtype), '[',
                              join(found->second.shape), "] there and ", to_text(type.dtype), '[',
                              join(type.shape), "] here"));
    } else if (type.layout.has_partial()) {
      others.push_back(concat("'", name, "' is partial here"));
    }
  }
  std::vector<std::string> unused;
  for (const auto& [name, ignored] : contents.tensors) {
    if (strict && !asked.contains(name)) unused.push_back(name);
  }
  std::vector<std::string> parts;
  if (!missing.empty()) parts.push_back("it lacks " + join(missing, ", "));
  if (!unused.empty()) parts.push_back("nobody asks for " + join(unused, ", "));
  if (!others.empty()) parts.push_back(join(others, ", "));
  if (parts.empty()) return;
  fail<ValueError>(kLoad, "step ", contents.step, " does not fit: ", join(parts, "; "),
                   "; nothing was changed");
}

/// Reads the pieces of one rank. A piece that is not dense, or not on the CPU, is read beside it.
void read_pieces(const std::string& folder, const Manifest& manifest, const World& world,
                 const NamedTensors& tensors, std::int64_t rank, bool verify) {
  std::map<std::string_view, std::size_t> places;
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) places[manifest.tensors[t].name] = t;
  std::vector<checkpoint::Wanted> wanted;
  std::vector<std::pair<at::Tensor, at::Tensor>> beside;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor piece = piece_of(world, tensor, rank);
    // In lockstep a plain tensor is one for all ranks.
    const bool is_mine = has_layout(tensor) || rank == world.hosted()[0];
    if (!piece.defined() || !is_mine) continue;
    const TensorType type = type_of(kLoad, world, name, tensor);
    at::Tensor into = piece;
    if (!into.is_cpu() || !into.is_contiguous() || into.is_conj() || into.is_neg()) {
      into = at::empty(into.sizes(), into.options().device(at::kCPU));
      beside.emplace_back(piece, into);
    }
    const Boxes boxes_here =
        boxes(type.layout, type.shape, *type.layout.mesh().coordinate_of(rank));
    wanted.push_back({places.at(name), checkpoint::part_of(boxes_here), memory_of(into)});
  }
  checkpoint::read_parts(local_files(), folder, manifest, wanted,
                         {.verify = verify, .first = rank % manifest.world});
  for (auto& [piece, read] : beside) piece.copy_(read);
}

/// A load by one rank, together with the others.
class Load {
 public:
  Load(World& world, checkpoint::Ranks& ranks, const std::string& folder,
       const NamedTensors& tensors, const LoadCheckpointOptions& options)
      : world_(world), ranks_(ranks), folder_(folder), tensors_(tensors), options_(options) {}

  CheckpointContents run() {
    const Json found = agree(
        [&] {
          return Json{{"folder", folder_}, {"step", wanted()}};
        },
        [&](const std::vector<Json>& said) { return choose(said); });
    const auto step = found.get<std::int64_t>();
    agree([&] { return look(step); }, [](const std::vector<Json>&) { return Json(); });
    agree([&] { return read(); }, [](const std::vector<Json>&) { return Json(); });
    return contents_of(manifest_);
  }

 private:
  Json agree(const checkpoint::Work& work, const checkpoint::Decide& decide) {
    return checkpoint::agree(ranks_, work, decide,
                             [&] { return concat("nothing was loaded from ", folder_, ": "); });
  }

  Json wanted() const { return options_.step ? Json(*options_.step) : Json(); }

  /// Rank 0: the step that all load.
  Json choose(const std::vector<Json>& said) const {
    for (std::size_t rank = 1; rank < said.size(); ++rank) {
      if (said[rank] == said[0]) continue;
      fail<ValueError>(kLoad, "rank ", rank, " loads another step or folder than rank 0");
    }
    return options_.step ? *options_.step : newest_step(folder_);
  }

  Json look(std::int64_t step) {
    path_ = checkpoint::folder_of_step(local_files(), folder_, step);
    manifest_ = checkpoint::read_manifest(local_files(), path_);
    check_fit(world_, contents_of(manifest_), tensors_, options_.strict);
    return nullptr;
  }

  Json read() const {
    read_pieces(path_, manifest_, world_, tensors_, ranks_.rank(), options_.verify);
    return nullptr;
  }

  World& world_;
  checkpoint::Ranks& ranks_;
  const std::string& folder_;
  const NamedTensors& tensors_;
  const LoadCheckpointOptions& options_;
  std::string path_;
  Manifest manifest_;
};

}  // namespace

void save_checkpoint(World& world, const std::string& folder, std::int64_t step,
                     const NamedTensors& tensors, const CheckpointValues& values,
                     const SaveCheckpointOptions& options) {
  check_world(kSave, world);
  for_each_rank(world, [&](checkpoint::Ranks& ranks) {
    const at::NoGradGuard no_grad;
    std::vector<SavedTensor> saved;
    RankState state;
    const auto make = [&]() -> checkpoint::StepState {
      for (const auto& [name, tensor] : tensors) {
        saved.push_back({name, type_of(kSave, world, name, tensor)});
      }
      state = state_of(world, tensors, ranks.rank());
      if (ranks.rank() == 0) {
        std::error_code ignored;  // that it is not there is told later
        std::filesystem::create_directories(folder, ignored);
      }
      return {
          .step = step, .tensors = saved, .pieces = state.pieces, .values = values_json(values)};
    };
    checkpoint::save_step(local_files(), ranks, folder, make,
                          {.replace = options.replace, .check_replicas = options.check_replicas});
  });
}

std::vector<std::int64_t> checkpoint_steps(const std::string& folder) {
  return checkpoint::steps_in(local_files(), folder);
}

CheckpointContents read_checkpoint(const std::string& folder, std::optional<std::int64_t> step) {
  if (!step) step = newest_step(folder);
  return contents_of(checkpoint::read_manifest(
      local_files(), checkpoint::folder_of_step(local_files(), folder, *step)));
}

std::int64_t newest_checkpoint(World& world, const std::string& folder) {
  std::int64_t out = 0;
  for_each_rank(world, [&](checkpoint::Ranks& ranks) {
    const std::int64_t step = agreed_step(ranks, folder);
    if (ranks.rank() == world.hosted()[0]) out = step;
  });
  return out;
}

CheckpointContents load_checkpoint(World& world, const std::string& folder,
                                   const NamedTensors& tensors,
                                   const LoadCheckpointOptions& options) {
  check_world(kLoad, world);
  CheckpointContents out;
  for_each_rank(world, [&](checkpoint::Ranks& ranks) {
    const at::NoGradGuard no_grad;
    const CheckpointContents contents = Load(world, ranks, folder, tensors, options).run();
    if (ranks.rank() == world.hosted()[0]) out = contents;
  });
  for (const auto& [name, tensor] : tensors) note_written(tensor);
  return out;
}

}  // namespace intarsia
