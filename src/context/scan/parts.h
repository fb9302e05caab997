// What one rank computes of a scan, as graphs of autograd that begin at leaves of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "context/mask/work.h"
#include "context/scan/states.h"
#include "intarsia/scan.h"

namespace intarsia::context {

/// The runs of one rank. Graphs are made while gradients are enabled.
class ScanPart {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// `along`, `others`: the pieces of the rank, and whether their gradients are wanted. `runs`: the
  /// positions that stand in them; none if the pieces are empty.
  ScanPart(const ScanLayer& layer, std::int64_t dim, const Tensors& along, const Tensors& others,
           const std::vector<bool>& wanted, Runs runs);

  /// One for each run. An empty piece gives one too, for its sizes; it stands for nothing.
  const std::vector<ScanState>& make_states();
  bool is_empty() const { return runs_.empty(); }
  /// The outputs of all runs, joined. `befores`: rows, by run.
  Tensors make_outputs(const StateShape& shape, const at::Tensor& befores);

  /// The gradients of the rows of `befores`, from those of the outputs; undefined ones are zeros.
  at::Tensor before_grads(const StateShape& shape, const Tensors& output_grads);
  /// The gradients of all inputs, from those of the states, as rows. After before_grads.
  Tensors input_grads(const StateShape& shape, const at::Tensor& state_grads) const;

 private:
  Tensors run_inputs(std::size_t run) const;
  void check(const Tensors& made, std::string_view what) const;
  Tensors leaves() const;

  const ScanLayer* layer_;
  std::int64_t dim_;
  Tensors along_, others_;
  Runs runs_;
  std::vector<ScanState> states_;
  std::vector<Tensors> kept_;  // by run
  Tensors befores_;            // leaves
  Tensors outputs_;
  Tensors grads_;  // of leaves, by way of the outputs
};

}  // namespace intarsia::context
