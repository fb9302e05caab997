// Distributed tensors: at::Tensor values that know how they are laid out over a mesh.
//
// A distributed tensor is an ordinary at::Tensor with global sizes; ATen's ops, autograd, autocast
// and torch::nn work on it. Each op runs on the local pieces, and moves them first where their
// layouts do not fit. What moved, and why, is in the bill (see communication.h).
//
// A plain tensor beside distributed ones counts as replicated: every rank must pass the same
// values. Its gradient, if it requires one, is a distributed tensor. So distribute what is trained
// (`distribute` is differentiable).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "intarsia/layout.h"
#include "intarsia/world.h"

namespace intarsia {

/// Whether a tensor is distributed.
bool has_layout(const at::Tensor& tensor);

/// The layout of a distributed tensor. REQUIRES: has_layout(tensor).
Layout layout_of(const at::Tensor& tensor);

/// The world that a distributed tensor lives in. REQUIRES: has_layout(tensor).
World& world_of(const at::Tensor& tensor);

/// What a distributed tensor is, in text: `f32[8@dp, 4] on [dp=2,tp=2]`; of a plain one, `f32[8, 4]
/// plain`. Communicates nothing.
std::string describe(const at::Tensor& tensor);

/// `describe`, followed by this process's pieces: for printing. Communicates nothing.
std::string show(const at::Tensor& tensor);

/// Lays out a full tensor, which must be the same on all ranks: each rank takes its piece, to the
/// world's device if the tensor is elsewhere. Differentiable. Communicates nothing. A rank outside
/// the mesh gets a tensor without pieces.
at::Tensor distribute(const at::Tensor& full, const Layout& layout, World& world);

/// Takes a local tensor as this rank's piece of a distributed one, without copying unless it is on
/// another device than the world's.
///
/// `shape`: the global sizes; may be left out where pieces are even. Differentiable: the gradient
/// comes back as this rank's piece in `grad_layout`, by default `layout` with R for partial.
/// REQUIRES: the piece has the sizes that layout and shape give it; the process hosts one rank.
struct FromLocalOptions {
  std::optional<std::vector<std::int64_t>> shape = std::nullopt;
  /// The strides of the full tensor, where they are not row-major. They must be the same on all
  /// ranks; strides of pieces need not be. If unset, the piece must be contiguous.
  std::optional<std::vector<std::int64_t>> strides = std::nullopt;
  std::optional<Layout> grad_layout = std::nullopt;
  /// Needed only where the process hosts no rank of the mesh, and so has no piece that tells it.
  std::optional<at::ScalarType> dtype = std::nullopt;
};
at::Tensor from_local(const at::Tensor& piece, const Layout& layout, World& world,
                      const FromLocalOptions& options = {});

/// The same for all ranks of the mesh that this process hosts, in their order: for lockstep.
at::Tensor from_locals(const std::vector<at::Tensor>& pieces, const Layout& layout, World& world,
                       const FromLocalOptions& options = {});

/// This rank's piece, as a plain tensor that shares memory with it. Differentiable, if the layout
/// of its gradient is known: a piece of a shard has a piece of the gradient. The gradient of a
/// replicated or partial tensor depends on what is done with the piece, so `grad_layout` must say
/// it: R if every rank computes the same from it, P(sum) if each computes its own part.
/// REQUIRES: the process hosts one rank of the mesh.
at::Tensor local(const at::Tensor& tensor, const std::optional<Layout>& grad_layout = std::nullopt);

/// The pieces of all ranks of the mesh that this process hosts, in their order: for lockstep. In
/// other worlds it is one piece, and none outside the mesh.
std::vector<at::Tensor> locals(const at::Tensor& tensor,
                               const std::optional<Layout>& grad_layout = std::nullopt);

/// The full tensor on every rank, as a plain tensor. That of a replicated tensor shares its memory,
/// except in lockstep, where one tensor stands for those of all ranks. Differentiable: its gradient
/// is taken to be the same on all ranks unless `grad_layout` says otherwise. COLLECTIVE: all ranks
/// of the mesh, unless it is replicated.
at::Tensor full(const at::Tensor& tensor, const std::optional<Layout>& grad_layout = std::nullopt);

/// The same values in another layout on the same mesh, in memory of their own; `tensor` itself
/// where it has that layout already. Differentiable, any number of times: the gradient goes back to
/// the layout that `tensor` had, where partial becomes R. COLLECTIVE: all ranks of the mesh, unless
/// nothing has to move.
at::Tensor redistribute(const at::Tensor& tensor, const Layout& layout);

/// Factories. Each rank makes its pieces; none but randperm builds the full tensor. Random ones
/// give the same values in every layout. They draw from torch's default CPU generator, which must
/// be seeded alike on all ranks: torch::manual_seed.
at::Tensor zeros(at::IntArrayRef sizes, const Layout& layout, World& world,
                 at::TensorOptions options = {});
at::Tensor ones(at::IntArrayRef sizes, const Layout& layout, World& world,
                at::TensorOptions options = {});
at::Tensor empty(at::IntArrayRef sizes, const Layout& layout, World& world,
                 at::TensorOptions options = {});
at::Tensor full_of(at::IntArrayRef sizes, const at::Scalar& value, const Layout& layout,
                   World& world, at::TensorOptions options = {});
at::Tensor arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                  const Layout& layout, World& world, at::TensorOptions options = {});
at::Tensor rand(at::IntArrayRef sizes, const Layout& layout, World& world,
                at::TensorOptions options = {});
at::Tensor randn(at::IntArrayRef sizes, const Layout& layout, World& world,
                 at::TensorOptions options = {});
at::Tensor randint(std::int64_t low, std::int64_t high, at::IntArrayRef sizes, const Layout& layout,
                   World& world, at::TensorOptions options = {});
at::Tensor randperm(std::int64_t n, const Layout& layout, World& world,
                    at::TensorOptions options = {});

/// Puts back the hook by which gradients of leaves get the layout of their leaf. torch drops it
/// when the first other hook is added to a tensor; the next use of the tensor puts it back too.
/// The Python package calls this by itself. In C++ it is needed where a hook is added between
/// forward and backward.
void keep_gradient_layout(const at::Tensor& tensor);

/// Code on plain local tensors between distributed ones.
///
/// Inputs are moved to the layouts `in`. `body` gets this rank's pieces, and returns its pieces of
/// the outputs, which are laid out as `out`. It runs once for each rank that the process hosts.
/// `grads`: the layouts in which the gradients of the inputs leave `body`; may be left out for
/// inputs that are sharded on every axis.
struct RegionLayouts {
  std::vector<Layout> in;
  std::vector<Layout> out;
  std::vector<std::optional<Layout>> grads = {};
  /// The global sizes of the outputs, where pieces are uneven.
  std::vector<std::optional<std::vector<std::int64_t>>> shapes = {};
};
std::vector<at::Tensor> local_region(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& body,
    const std::vector<at::Tensor>& inputs, const RegionLayouts& region);

/// Checks that ranks which should hold the same values do: those along axes on which the tensor is
/// R. NaNs equal NaNs. A WorldError names the tensor, the ranks that differ and, where all live
/// here, the first difference. COLLECTIVE: all ranks of the mesh.
void assert_replicas(const at::Tensor& tensor, std::string_view name = {});

}  // namespace intarsia
