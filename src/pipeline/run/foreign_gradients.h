// Gradients of parameters whose ranks are others.
#pragma once

#include <map>
#include <vector>

#include "intarsia/pipeline.h"

namespace intarsia::pipeline {

/// Gives parameters of other places gradients without pieces where their own ranks have some, so
/// that optimizers and clipping see the same parameters on all ranks.
class ForeignGradients {
 public:
  /// REQUIRES: places and stages outlive this.
  ForeignGradients(const World& world, const std::vector<Mesh>& places,
                   const std::vector<PipelineStage>& stages)
      : world_(world), places_(places), stages_(stages) {}

  /// Which parameters of the stages here have gradients, as numbers to be told to the others.
  std::vector<double> marks(const Schedule& schedule) const;
  /// `told`: the numbers of all places; the marks begin behind the first so many of them.
  void fill(const Schedule& schedule, const std::vector<std::vector<double>>& told,
            std::size_t first);

 private:
  bool is_here(const Schedule& schedule, std::size_t stage) const;

  const World& world_;
  const std::vector<Mesh>& places_;
  const std::vector<PipelineStage>& stages_;
  std::map<const void*, at::Tensor> zeros_;  // by parameter
};

}  // namespace intarsia::pipeline
