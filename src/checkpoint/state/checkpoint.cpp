#include "intarsia/checkpoint.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "base/text.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/plan/name_map.h"
#include "checkpoint/session/agree.h"
#include "checkpoint/session/load_step.h"
#include "checkpoint/session/save_step.h"
#include "checkpoint/state/tensor_state.h"
#include "checkpoint/store/all_files.h"
#include "checkpoint/transfer/hugging_face_folder.h"
#include "checkpoint/transfer/read_mapped.h"
#include "checkpoint/transfer/read_parts.h"
#include "intarsia/error.h"
#include "intarsia/pattern.h"
#include "intarsia/tensor.h"
#include "tensor/core/impl.h"
#include "tensor/move/state.h"
#include "tensor/move/write_through.h"
#include "world/transport/devices.h"
#include "world/transport/dtype.h"

namespace intarsia {
namespace {

using checkpoint::all_files;
using checkpoint::for_each_rank;
using checkpoint::Json;
using checkpoint::Manifest;
using checkpoint::memory_of;
using checkpoint::piece_of;
using checkpoint::SavedTensor;
using checkpoint::type_of;

constexpr std::string_view kSave = "save_checkpoint";
constexpr std::string_view kLoad = "load_checkpoint";
constexpr std::string_view kLoadHf = "load_hugging_face";

/// The memory of a tensor was written: as if an op had done it.
void note_written(const at::Tensor& tensor) {
  if (has_layout(tensor)) {
    DistributedImpl& impl = impl_of(tensor);
    impl.state().note_write(impl);
    if (impl.extra()) write_through(impl, kLoad);
  }
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

CheckpointContents contents_of(const Manifest& manifest) {
  CheckpointContents out{.step = manifest.step, .tensors = {}, .values = {}};
  for (const SavedTensor& tensor : manifest.tensors) out.tensors.emplace(tensor.name, tensor.type);
  for (const auto& [name, value] : manifest.values.items()) out.values[name] = value.dump();
  return out;
}

/// The newest step, older than `before` if that is set.
std::int64_t newest_step(const std::string& folder, std::optional<std::int64_t> before = {}) {
  auto steps = checkpoint::steps_in(all_files(), folder);
  while (before && !steps.empty() && steps.back() >= *before) steps.pop_back();
  if (steps.empty()) {
    fail<FileError>(kLoad, folder, ": there are no checkpoints",
                    before ? concat(" before step ", *before) : "");
  }
  return steps.back();
}

/// A step that all ranks may load, together with the others.
class Find {
 public:
  /// `rules`: what ranks must have in common beside the folder and the step.
  Find(checkpoint::Ranks& ranks, const std::string& folder, Json rules = Json())
      : ranks_(ranks), folder_(folder), rules_(std::move(rules)) {}

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  /// Tries `step`, or the newest one; where files of it cannot be read, and only if it falls back,
  /// older ones too.
  template <class Try>
  void for_each(std::optional<std::int64_t> step, std::optional<std::int64_t> before,
                bool fall_back, const Try& attempt) {
    while (true) {
      choose(step, before);
      try {
        return attempt();
      } catch (const FileError& error) {
        if (!fall_back) throw;
        if (ranks_.rank() == 0) std::fprintf(stderr, "%s; an older step is tried\n", error.what());
      }
      step.reset();
      before = step_;
    }
  }

  /// Every rank reads the manifest, and looks at it.
  template <class Look>
  void read(const Look& look) {
    together([&] {
      path_ = checkpoint::folder_of_step(all_files(), folder_, step_);
      manifest_ = checkpoint::read_manifest(all_files(), path_);
      look(manifest_);
    });
  }

  /// Refuses ranks that load from another folder, or by other rules, where there are no steps.
  void compare() {
    agree(
        [&] {
          return Json{{"folder", folder_}, {"rules", rules_}};
        },
        [&](const std::vector<Json>& said) {
          check_same(said);
          return Json();
        });
  }

  /// Something that each rank does, and that fails on all if it fails on one.
  template <class Each>
  void together(const Each& each) {
    agree(
        [&] {
          each();
          return Json();
        },
        [](const std::vector<Json>&) { return Json(); });
  }

 private:
  void choose(std::optional<std::int64_t> wanted, std::optional<std::int64_t> before) {
    const auto word = [](std::optional<std::int64_t> number) {
      return number ? Json(*number) : Json();
    };
    step_ = agree(
                [&] {
                  return Json{{"folder", folder_},
                              {"step", word(wanted)},
                              {"before", word(before)},
                              {"rules", rules_}};
                },
                [&](const std::vector<Json>& said) {
                  check_same(said);
                  return Json(wanted ? *wanted : newest_step(folder_, before));
                })
                .get<std::int64_t>();
  }

  Json agree(const checkpoint::Work& work, const checkpoint::Decide& decide) {
    return checkpoint::agree(ranks_, work, decide,
                             [&] { return concat("nothing was loaded from ", folder_, ": "); });
  }

  static void check_same(const std::vector<Json>& said) {
    for (std::size_t rank = 1; rank < said.size(); ++rank) {
      if (said[rank] == said[0]) continue;
      const bool rules_differ = said[rank]["rules"] != said[0]["rules"];
      fail<ValueError>(
          kLoad, "rank ", rank, " loads ",
          rules_differ ? "by other `names`, `only` or `without`" : "another step or folder",
          " than rank 0");
    }
  }

  checkpoint::Ranks& ranks_;
  const std::string& folder_;
  Json rules_;
  std::int64_t step_ = 0;
  std::string path_;
  Manifest manifest_;
};

bool can_convert(DType from, DType to) {
  return checkpoint::is_plain_floating(scalar_type(from)) &&
         checkpoint::is_plain_floating(scalar_type(to));
}

/// Refuses, with all names, what a step and the tensors that are to be loaded do not share.
void check_fit(const World& world, const std::string& what, const CheckpointContents& contents,
               const NamedTensors& tensors, const LoadCheckpointOptions& options) {
  std::vector<std::string> missing;
  std::vector<std::string> others;
  std::set<std::string> asked;
  for (const auto& [name, tensor] : tensors) {
    if (!asked.insert(name).second) fail<ValueError>(kLoad, "'", name, "' is asked for twice");
    const TensorType type = type_of(kLoad, world, name, tensor);
    const auto found = contents.tensors.find(name);
    if (found == contents.tensors.end()) {
      missing.push_back(name);
    } else if ((found->second.dtype != type.dtype &&
                !(options.convert && can_convert(found->second.dtype, type.dtype))) ||
               found->second.shape != type.shape) {
      others.push_back(concat(
          "'", name, "' is ", checkpoint::sizes_text(found->second.dtype, found->second.shape),
          " there and ", checkpoint::sizes_text(type.dtype, type.shape), " here"));
    } else if (type.layout.has_partial()) {
      others.push_back(concat("'", name, "' is partial here"));
    }
  }
  std::vector<std::string> unused;
  for (const auto& [name, ignored] : contents.tensors) {
    const bool is_strict = options.strict && options.only.empty();
    if (is_strict && !asked.contains(name) && !matches_any(name, options.without)) {
      unused.push_back(name);
    }
  }
  std::vector<std::string> parts;
  if (!missing.empty()) parts.push_back("it lacks " + join(missing, ", "));
  if (!unused.empty()) parts.push_back("nobody asks for " + join(unused, ", "));
  if (!others.empty()) parts.push_back(join(others, ", "));
  if (parts.empty()) return;
  fail<ValueError>(kLoad, what, " does not fit: ", join(parts, "; "), "; nothing was changed");
}

using checkpoint::MappedTensor;
using Mapped = std::map<std::string, MappedTensor>;

Mapped mapped(const Manifest& manifest, const std::string& names) {
  checkpoint::NameMap map;
  if (!names.empty()) map = checkpoint::NameMap::parse("names", names);
  Mapped out;
  for (MappedTensor& each : map.apply(manifest.tensors)) out.emplace(each.name, std::move(each));
  return out;
}

/// Contents by the names that rules give.
CheckpointContents renamed(CheckpointContents contents, const Mapped& tensors) {
  contents.tensors.clear();
  for (const auto& [name, tensor] : tensors) {
    contents.tensors.emplace(name, TensorType{tensor.dtype, tensor.shape, {}});
  }
  return contents;
}

Json rules_of(const LoadCheckpointOptions& options) {
  return {{"names", options.names}, {"only", options.only}, {"without", options.without}};
}

/// What of the tensors is asked for.
NamedTensors asked_for(const NamedTensors& tensors, const LoadCheckpointOptions& options) {
  NamedTensors out;
  std::set<std::string> unused(options.only.begin(), options.only.end());
  for (const auto& each : tensors) {
    const auto fits = [&](const std::string& pattern) { return matches(each.first, pattern); };
    const bool is_asked = options.only.empty() || matches_any(each.first, options.only);
    if (is_asked && !matches_any(each.first, options.without)) out.push_back(each);
    std::erase_if(unused, fits);
  }
  if (unused.empty()) return out;
  fail<ValueError>(kLoad, "no tensor's name fits ", join(unused, ", "));
}

/// Reads the pieces of one rank. A piece that is not dense, or not on the CPU, is read beside it.
void read_pieces(const std::string& folder, const Manifest& manifest, const Mapped& sources,
                 const World& world, const NamedTensors& tensors, std::int64_t rank, bool verify) {
  const checkpoint::ReadOptions options{.verify = verify, .first = rank % manifest.world};
  std::vector<checkpoint::Wanted> wanted;
  std::vector<std::pair<at::Tensor, at::Tensor>> beside;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor piece = piece_of(world, tensor, rank);
    // In lockstep a plain tensor is one for all ranks.
    const bool is_mine = has_layout(tensor) || rank == world.hosted()[0];
    if (!piece.defined() || !is_mine) continue;
    const TensorType type = type_of(kLoad, world, name, tensor);
    at::Tensor into = piece;
    const MappedTensor& source = sources.at(name);
    const auto dtype = scalar_type(source.dtype);
    if (!into.is_cpu() || !into.is_contiguous() || into.is_conj() || into.is_neg() ||
        into.scalar_type() != dtype) {
      into = host_memory(into.sizes(), dtype, piece.device());
      beside.emplace_back(piece, into);
    }
    const Boxes boxes_here =
        boxes(type.layout, type.shape, *type.layout.mesh().coordinate_of(rank));
    const checkpoint::Part part = checkpoint::part_of(boxes_here);
    if (source.is_saved()) {
      wanted.push_back({source.blocks[0].tensor, part, memory_of(into)});
    } else {
      checkpoint::read_mapped(all_files(), folder, manifest, source, part, memory_of(into),
                              options);
    }
  }
  checkpoint::read_parts(all_files(), folder, manifest, wanted, options);
  Copies copies;
  for (const auto& [piece, read] : beside) copies.begin(piece, read);
  copies.finish();
}

/// A load by one rank, together with the others.
CheckpointContents load_with(World& world, checkpoint::Ranks& ranks, const std::string& folder,
                             const NamedTensors& all, const LoadCheckpointOptions& options) {
  Find find(ranks, folder, rules_of(options));
  Mapped sources;
  NamedTensors tensors;
  find.for_each(options.step, {}, options.fall_back, [&] {
    find.read([&](const Manifest& manifest) {
      tensors = asked_for(all, options);
      sources = mapped(manifest, options.names);
      check_fit(world, concat("step ", manifest.step), renamed(contents_of(manifest), sources),
                tensors, options);
    });
    find.together([&] {
      read_pieces(find.path(), find.manifest(), sources, world, tensors, ranks.rank(),
                  options.verify);
    });
  });
  return contents_of(find.manifest());
}

/// What `into` gives for a step, on all ranks or on none. A rank that cannot throws its own error,
/// the others one that names it. In lockstep one asks for all.
NamedTensors tensors_for(World& world, const std::string& folder, const TensorsFor& into,
                         const CheckpointContents& found, const std::string& names) {
  const auto ask_once = [&] { return into(names.empty() ? found : with_names(found, names)); };
  if (world.in_lockstep()) return ask_once();
  NamedTensors out;
  std::exception_ptr error;
  const auto ask = [&] {
    try {
      out = ask_once();
    } catch (const Failure&) {
      error = std::current_exception();
      throw;
    } catch (const std::exception& other) {
      error = std::current_exception();
      const std::string_view words = other.what();  // Python's lines are of no use to others
      fail<ValueError>(kLoad, words.substr(0, words.find("\n\n")));
    }
  };
  try {
    for_each_rank(world, world.everyone(),
                  [&](checkpoint::Ranks& ranks) { Find(ranks, folder).together(ask); });
  } catch (const std::exception&) {
    if (error) std::rethrow_exception(error);
    throw;
  }
  return out;
}

}  // namespace

void save_checkpoint(World& world, const std::string& folder, std::int64_t step,
                     const NamedTensors& given, const CheckpointValues& values,
                     const SaveCheckpointOptions& options) {
  checkpoint::check_world(kSave, world);
  const NamedTensors tensors = checkpoint::converted(kSave, given, options.form, options.hf_dtype);
  for_each_rank(world, world.everyone(), [&](checkpoint::Ranks& ranks) {
    const at::NoGradGuard no_grad;
    std::vector<SavedTensor> saved;
    checkpoint::RankState state;
    const auto make = [&]() -> checkpoint::StepState {
      saved = checkpoint::types_of(kSave, world, tensors);
      state = checkpoint::state_of(world, tensors, ranks.rank());
      if (ranks.rank() == 0) checkpoint::try_make_folders(folder);
      return {
          .tensors = saved,
          .pieces = state.pieces,
          .values = checkpoint::values_json(kSave, values),
          .hf_file_bytes = checkpoint::hf_file_bytes(kSave, options.form, options.hf_file_bytes)};
    };
    checkpoint::save_step(all_files(), ranks, folder, step, make,
                          {.replace = options.replace, .check_replicas = options.check_replicas});
  });
}

std::vector<std::int64_t> checkpoint_steps(const std::string& folder) {
  return checkpoint::steps_in(all_files(), folder);
}

CheckpointContents read_checkpoint(const std::string& folder, std::optional<std::int64_t> step) {
  if (!step) step = newest_step(folder);
  return contents_of(checkpoint::read_manifest(
      all_files(), checkpoint::folder_of_step(all_files(), folder, *step)));
}

bool any_checkpoint(World& world, const std::string& folder) {
  bool out = false;
  for_each_rank(world, world.everyone(), [&](checkpoint::Ranks& ranks) {
    const bool any = checkpoint::agree(
        ranks, [] { return Json(); },
        [&](const std::vector<Json>&) {
          return all_files().exists(folder) && !checkpoint_steps(folder).empty();
        },
        [] { return std::string(); });
    if (ranks.rank() == world.hosted()[0]) out = any;
  });
  return out;
}

CheckpointContents find_checkpoint(World& world, const std::string& folder,
                                   std::optional<std::int64_t> step,
                                   std::optional<std::int64_t> before, bool fall_back) {
  CheckpointContents out;
  for_each_rank(world, world.everyone(), [&](checkpoint::Ranks& ranks) {
    Find find(ranks, folder);
    find.for_each(step, before, fall_back, [&] { find.read([](const Manifest&) {}); });
    if (ranks.rank() == world.hosted()[0]) out = contents_of(find.manifest());
  });
  return out;
}

CheckpointContents load_checkpoint(World& world, const std::string& folder, const NamedTensors& all,
                                   const LoadCheckpointOptions& options) {
  checkpoint::check_world(kLoad, world);
  CheckpointContents out;
  for_each_rank(world, world.everyone(), [&](checkpoint::Ranks& ranks) {
    const at::NoGradGuard no_grad;
    const CheckpointContents contents = load_with(world, ranks, folder, all, options);
    if (ranks.rank() == world.hosted()[0]) out = contents;
  });
  for (const auto& [name, tensor] : asked_for(all, options)) note_written(tensor);
  return out;
}

CheckpointContents load_checkpoint(World& world, const std::string& folder, const TensorsFor& into,
                                   const LoadCheckpointOptions& options) {
  checkpoint::check_world(kLoad, world);
  LoadCheckpointOptions each = options;
  each.fall_back = false;
  std::optional<std::int64_t> before;
  while (true) {
    const auto found = find_checkpoint(world, folder, each.step, before, options.fall_back);
    each.step = found.step;
    const NamedTensors tensors = tensors_for(world, folder, into, found, options.names);
    try {
      return load_checkpoint(world, folder, tensors, each);
    } catch (const FileError& error) {
      if (!options.fall_back) throw;
      if (world.hosted()[0] == 0)
        std::fprintf(stderr, "%s; an older step is tried\n", error.what());
    }
    each.step.reset();
    before = found.step;
  }
}

CheckpointContents load_hugging_face(World& world, const std::string& folder,
                                     const NamedTensors& all,
                                     const LoadCheckpointOptions& options) {
  checkpoint::check_world(kLoadHf, world);
  CheckpointContents out;
  for_each_rank(world, world.everyone(), [&](checkpoint::Ranks& ranks) {
    const at::NoGradGuard no_grad;
    Find find(ranks, folder, rules_of(options));
    Manifest manifest;
    Mapped sources;
    NamedTensors tensors;
    find.compare();
    find.together([&] {
      tensors = asked_for(all, options);
      manifest = checkpoint::read_hf_folder(all_files(), folder);
      sources = mapped(manifest, options.names);
      check_fit(world, folder, renamed(contents_of(manifest), sources), tensors, options);
    });
    find.together([&] {
      read_pieces(folder, manifest, sources, world, tensors, ranks.rank(), /*verify=*/false);
    });
    if (ranks.rank() == world.hosted()[0]) out = contents_of(manifest);
  });
  for (const auto& [name, tensor] : asked_for(all, options)) note_written(tensor);
  return out;
}

CheckpointContents with_names(const CheckpointContents& contents, const std::string& names) {
  Manifest manifest;
  for (const auto& [name, type] : contents.tensors) manifest.tensors.push_back({name, type});
  return renamed(contents, mapped(manifest, names));
}

CheckpointContents read_hugging_face(const std::string& folder) {
  return contents_of(checkpoint::read_hf_folder(all_files(), folder));
}

}  // namespace intarsia
