// Optimizers on distributed parameters: clipping by norm, a check of states, and Muon.
//
// torch's optimizers need none of this: they work on distributed parameters element by element, and
// keep their states in the parameters' layouts.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "intarsia/build.h"
#include "intarsia/mesh.h"

namespace intarsia {

// ---- the norm of all gradients ---------------------------------------------------------------

struct NormOptions {
  /// Above 0; infinity for the largest absolute value.
  double norm_type = 2;
  /// Throw where the norm is infinite or not a number.
  bool error_if_nonfinite = false;
};

/// The norm of all tensors as if they were one, as a plain tensor, the same on all ranks: f64 where
/// one of the tensors is, else f32, in which half precision is summed too. 0 for no tensors.
///
/// The tensors may have different layouts, on different meshes of one world, and may be plain. Each
/// element counts once: a replicated one on one of its ranks, a plain one as the same on all ranks.
/// Partial tensors are reduced first, which moves them; they stay as they are.
///
/// One reduction of a few bytes, however many tensors, layouts and meshes there are: over the axes
/// that shard any of them, or where there are several meshes, over all their ranks. None where
/// nothing is sharded. All ranks of the meshes pass the same list; ranks outside a tensor's mesh
/// hold it without a piece. A rank that is in none of the meshes gets NaN.
///
/// COLLECTIVE: all ranks of the meshes. THREADS: as for collectives.
at::Tensor total_norm(const std::vector<at::Tensor>& tensors, const NormOptions& options = {});

/// `total_norm` of the gradients of those parameters that have one.
at::Tensor get_grad_norm(const std::vector<at::Tensor>& parameters,
                         const NormOptions& options = {});

/// Scales the gradients in place so that their norm together is at most `max_norm`, and returns the
/// norm that they had. torch's clip_grad_norm_ works too where all gradients are distributed, on
/// one mesh.
at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                           const NormOptions& options = {});

// ---- states that fit their parameters --------------------------------------------------------

/// A tensor that an optimizer keeps for a parameter.
struct OptimizerState {
  std::string parameter;  ///< its name
  std::string name;       ///< of the state: `exp_avg`
  at::Tensor of;          ///< the parameter
  at::Tensor value;
};

/// Refuses states that have the sizes of their parameter but are laid out otherwise: in another
/// layout, on another mesh, or plain beside a distributed parameter. ValueError that names the
/// first, with both layouts. Communicates nothing.
void check_optimizer(const std::vector<OptimizerState>& states);

/// Refuses parameters that an optimizer trains (`trained`), are plain, and are not among those of
/// the module (`names`), of which some are distributed: they were the module's before it was laid
/// out. ValueError that names all of them. Communicates nothing.
void check_parameters(const NamedTensors& trained, const NamedTensors& names);

/// Both, for the states of Adam, AdamW, SGD, Adagrad, RMSprop and Muon. `names`: of the parameters,
/// as `named_parameters()` gives them; without them they are counted, and all are taken to be the
/// module's.
void check_optimizer(const torch::optim::Optimizer& optimizer, const NamedTensors& names = {});

// ---- full matrices ---------------------------------------------------------------------------

/// Which of `ranks` ranks does each of many tasks, so that the busiest has little more than the
/// others: the longest task first, each to the rank that has least so far. The same on all ranks
/// that pass the same costs.
std::vector<std::int64_t> balanced_owners(std::span<const std::int64_t> costs, std::int64_t ranks);
/// The same, each task among the ranks of its mesh.
std::vector<std::int64_t> balanced_owners(std::span<const std::int64_t> costs,
                                          std::span<const Mesh> meshes);

/// The iteration that makes a matrix nearly orthogonal, as in Keller Jordan's Muon.
struct NewtonSchulz {
  std::array<double, 3> coefficients = {3.4445, -4.7750, 2.0315};
  std::int64_t steps = 5;
  /// The least norm that a matrix is divided by.
  double epsilon = 1e-7;
  /// The dtype in which it computes, and in which matrices travel.
  at::ScalarType dtype = at::kBFloat16;
  friend bool operator==(const NewtonSchulz&, const NewtonSchulz&) = default;
};

/// Orthogonal matrices near those given, in their layouts and in `options.dtype`.
///
/// Each distributed matrix goes to one rank of its mesh, which then has the full matrix. Matrices
/// are dealt out by `balanced_owners`, so that replicas share the work as well. All travel in one
/// exchange, and in another one back. Outside autograd. REQUIRES: matrices.
/// COLLECTIVE: all ranks of the meshes, with the same list; see redistribute_between.
std::vector<at::Tensor> orthogonalize(const std::vector<at::Tensor>& matrices,
                                      const NewtonSchulz& options = {});

/// How Muon's learning rate depends on the sizes of a matrix.
enum class MuonScale : std::uint8_t {
  original,         ///< sqrt(max(1, rows / columns))
  match_rms_adamw,  ///< 0.2 sqrt(max(rows, columns))
};

struct MuonOptions : torch::optim::OptimizerCloneableOptions<MuonOptions> {
  explicit MuonOptions(double lr = 1e-3) : lr_(lr) {}
  TORCH_ARG(double, lr);
  TORCH_ARG(double, weight_decay) = 0.1;
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  TORCH_ARG(NewtonSchulz, iteration) = {};
  TORCH_ARG(MuonScale, scale) = MuonScale::original;

 public:
  double get_lr() const override { return lr(); }
  void set_lr(double value) override { lr(value); }
};

struct MuonParamState : torch::optim::OptimizerCloneableParamState<MuonParamState> {
  TORCH_ARG(at::Tensor, momentum_buffer);
};

/// Parameters with what a step of Muon needs: one gradient and one momentum each.
struct MuonTensors {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> momenta;
  MuonOptions options;
};
/// One step of Muon for all groups, with one exchange there and one back for all of them whose
/// iteration is the same. COLLECTIVE: see `orthogonalize`.
void muon_step(const std::vector<MuonTensors>& groups);

/// Muon (https://kellerjordan.github.io/posts/muon), with the options and defaults of
/// torch.optim.Muon: for the matrices inside a model; vectors, embeddings and the last layer want
/// another optimizer. Parameters may be plain. The momentum is laid out as its parameter.
/// REQUIRES: matrices. `step` is COLLECTIVE, see `orthogonalize`; all ranks have the same
/// parameters with gradients.
class Muon : public torch::optim::Optimizer {
 public:
  explicit Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                const MuonOptions& defaults = MuonOptions());
  explicit Muon(std::vector<at::Tensor> parameters, const MuonOptions& defaults = MuonOptions());

  at::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace intarsia
