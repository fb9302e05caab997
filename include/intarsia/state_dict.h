// Full state dicts: the values of a model and of its optimizer as plain full tensors, for files
// that any other layout, and a plain model, can be loaded from.
//
//   const auto state = full_state_dict(*net);                   // all ranks call it
//   if (world->rank() == 0) save_state_dict(state, "model.pt");
//
//   load_full_state_dict(*other, read_state_dict("model.pt"));  // other mesh or layouts, or plain
//
// Do not use torch::save for modules with distributed parameters: it opens, and so empties, the
// file before the first tensor can refuse.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <string>

#include "intarsia/build.h"
#include "intarsia/tensor_type.h"

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace intarsia {

struct FullStateOptions {
  /// Each tensor is brought to the memory of the CPU before the next is gathered.
  bool on_cpu = false;
  /// Ranks other than 0 take part and keep nothing: they get an empty dict.
  bool only_on_rank_0 = false;
};

/// The parameters and buffers of a module by name, full and plain, in memory of their own. A tensor
/// with several names (tied weights) is one tensor here too. The module may be plain.
/// COLLECTIVE: all ranks of the meshes, for each sharded tensor.
NamedTensors full_state_dict(const torch::nn::Module& module, const FullStateOptions& options = {});

/// Gives a module the values of a full state dict, which must be the same on all ranks. They are
/// cast to its dtypes and laid out as its tensors are; those keep their identity, and optimizers
/// stay valid. ValueError that names all tensors that are missing, unexpected, of another size, or
/// distributed, before anything is changed. Not `strict`: missing and unexpected ones are left out.
/// Communicates nothing.
void load_full_state_dict(torch::nn::Module& module, const NamedTensors& state, bool strict = true);

/// The state of an optimizer in full: `state.NAME.exp_avg` and `state.NAME.step` for the parameter
/// that the module calls NAME, as far as it has a state, and `param_groups.0.lr`. Other options
/// of groups are not in it. For Adam, AdamW, SGD, Adagrad, RMSprop and Muon; UnsupportedError for
/// others, ValueError for parameters that are not the module's.
/// COLLECTIVE: all ranks of the meshes, for each sharded tensor.
NamedTensors full_optimizer_state_dict(const torch::optim::Optimizer& optimizer,
                                       const torch::nn::Module& module,
                                       const FullStateOptions& options = {});

/// Gives an optimizer such a state, in place of what it has; tensors are laid out as their
/// parameters are. ValueError that names everything that is missing, unexpected or of another size,
/// before anything is changed. A parameter of which the dict has nothing begins without a state.
/// Communicates nothing.
void load_full_optimizer_state_dict(torch::optim::Optimizer& optimizer,
                                    const torch::nn::Module& module, const NamedTensors& state);

/// Writes plain tensors by name into a file that `read_state_dict` reads, and Python's torch.load
/// as a dict. The file is replaced when all is written, not before. ValueError that names a
/// distributed tensor; nothing is then written. Communicates nothing.
void save_state_dict(const NamedTensors& state, const std::string& path);

/// The tensors of such a file, or of one that torch.save made of a dict of tensors, on the CPU.
NamedTensors read_state_dict(const std::string& path);

}  // namespace intarsia
