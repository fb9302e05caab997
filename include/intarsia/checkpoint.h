// Checkpoints: the state of a training run on disk, in pieces. Each rank writes what it holds, in
// safetensors files, and a run on any other mesh or in any other layouts can read it.
//
//   save_checkpoint(*world, "runs/a", step, tensors_of(net), {{"sample", "128000"}});
//
//   const auto step = load_checkpoint(*world, "runs/a", tensors_of(net)).step;   // the newest
//
// A step is a folder that is complete or not there. What was written is compared with its hashes
// when it is read. docs/checkpoints.md tells more, docs/formats.md what is in the files.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/build.h"
#include "intarsia/tensor_type.h"
#include "intarsia/world.h"

namespace intarsia {

/// What is no tensor, by name; each value is a JSON text, such as `17`, `"cosine"` or `[1,2]`.
using CheckpointValues = std::map<std::string, std::string>;

/// How the values of a step are put into files.
enum class CheckpointForm : std::uint8_t {
  /// Each rank writes a file of its own. The fastest.
  native,
  /// Ranks write together into a folder as Hugging Face has it: `model.safetensors`, or several and
  /// their index, each with all of its tensors. For models: their readers take all that is there.
  hf,
};

struct SaveCheckpointOptions {
  /// A step that is there already is replaced, by one rename. Otherwise it is an error.
  bool replace = false;
  /// Ranks that should hold the same values compare hashes of them before anything is written.
  bool check_replicas = true;
  CheckpointForm form = CheckpointForm::native;
  /// hf: how long a file is at most, unless one tensor is longer.
  std::uint64_t hf_file_bytes = 5'000'000'000;
  /// hf: floating point tensors are converted to this one, such as at::kBFloat16.
  std::optional<at::ScalarType> hf_dtype = std::nullopt;
};

/// Saves a step below `folder`, which is made if it is not there. Tensors keep their layouts; a
/// plain one is taken to be the same on all ranks, which share the writing. A tensor with several
/// names is saved under each.
///
/// Returns when the step would survive a crash of all machines. An error is the same on all ranks,
/// and names the rank that met it; steps that were there are as they were. Errors are ValueError
/// for partial values, two tensors of one name, values that are no JSON, ranks that save different
/// things or differ in replicas, and a step that is there already; FileError for what the file
/// system refuses, and where ranks do not see the same folder.
/// COLLECTIVE: all ranks of the world, which pass the same names, layouts and values.
void save_checkpoint(World& world, const std::string& folder, std::int64_t step,
                     const NamedTensors& tensors, const CheckpointValues& values = {},
                     const SaveCheckpointOptions& options = {});

/// What a step holds, without its tensors' values.
struct CheckpointContents {
  std::int64_t step = 0;
  /// By name: dtype, sizes, and the layout in which each was saved.
  std::map<std::string, TensorType> tensors;
  CheckpointValues values;
};

/// The steps that were saved below a folder, in ascending order. Communicates nothing.
std::vector<std::int64_t> checkpoint_steps(const std::string& folder);

/// What a step holds; without a step, the newest. FileError where there is none, or its manifest is
/// damaged. Communicates nothing.
CheckpointContents read_checkpoint(const std::string& folder,
                                   std::optional<std::int64_t> step = std::nullopt);

/// Whether rank 0 sees a checkpoint there, on every rank. COLLECTIVE: all ranks of the world.
bool any_checkpoint(World& world, const std::string& folder);

/// What the step holds that all ranks may load: `step`, or the newest one that rank 0 sees, older
/// than `before` if that is set. FileError, the same on all ranks, where there is none or a rank
/// cannot read its manifest; `fall_back`: that is told on stderr, and the next older one is taken.
/// COLLECTIVE: all ranks of the world.
CheckpointContents find_checkpoint(World& world, const std::string& folder,
                                   std::optional<std::int64_t> step = std::nullopt,
                                   std::optional<std::int64_t> before = std::nullopt,
                                   bool fall_back = false);

struct LoadCheckpointOptions {
  /// Unset: the newest one that rank 0 sees.
  std::optional<std::int64_t> step = std::nullopt;
  /// Every chunk of a file that is read is compared with its hash.
  bool verify = true;
  /// Tensors of the step that nobody asks for are an error.
  bool strict = true;
  /// Tensors of another floating point dtype get the values, converted. Otherwise they are an
  /// error, as are always integers and numbers of 8 bits: those mean nothing without their scales.
  bool convert = false;
  /// How saved tensors become these, as a JSON list of rules: renamed, joined, split, stacked,
  /// transposed. docs/checkpoints.md shows them. Empty: they go by their own names.
  std::string names = {};
  /// Only tensors whose names fit one of these patterns (pattern.h) are loaded, and the others of
  /// both sides left out. Empty: all.
  std::vector<std::string> only = {};
  /// Tensors whose names fit one of these patterns are left out, of both sides.
  std::vector<std::string> without = {};
  /// A step that is damaged or cannot be read is told on stderr, and the next older one is taken.
  bool fall_back = false;
};

/// Gives tensors the values of a step: each rank reads what it needs, straight into its pieces. The
/// layouts need not be those in which they were saved.
///
/// Before any tensor is changed, a ValueError lists all names that the step lacks, those that are
/// not asked for, and those of other sizes or another dtype. A FileError that comes while reading
/// names the file, the tensor and the bytes; the tensors hold anything then. Errors are the same on
/// all ranks. COLLECTIVE: all ranks of the world.
CheckpointContents load_checkpoint(World& world, const std::string& folder,
                                   const NamedTensors& tensors,
                                   const LoadCheckpointOptions& options = {});

/// The tensors that a step is to be loaded into, given what it holds by the names of
/// LoadCheckpointOptions::names.
using TensorsFor = std::function<NamedTensors(const CheckpointContents&)>;

/// The same, where what is loaded depends on what was saved: `into` is asked on every rank, for
/// each step that is tried. Where it throws, so do the other ranks, with the rank and its words;
/// nothing is loaded then.
CheckpointContents load_checkpoint(World& world, const std::string& folder, const TensorsFor& into,
                                   const LoadCheckpointOptions& options = {});

/// Gives tensors the values of a folder of Hugging Face: `model.safetensors`, or several files with
/// `model.safetensors.index.json`. Each rank reads what it needs, straight into its pieces. Errors
/// are those of load_checkpoint. There are neither steps nor hashes, so that `step`,
/// `verify` and `fall_back` mean nothing. COLLECTIVE: all ranks of the world.
CheckpointContents load_hugging_face(World& world, const std::string& folder,
                                     const NamedTensors& tensors,
                                     const LoadCheckpointOptions& options = {});

/// What tensors there are when rules have made them of those of a checkpoint. ValueError where a
/// rule does not fit them, FileError where it is none.
CheckpointContents with_names(const CheckpointContents& contents, const std::string& names);

/// What such a folder holds. Communicates nothing.
CheckpointContents read_hugging_face(const std::string& folder);

}  // namespace intarsia
