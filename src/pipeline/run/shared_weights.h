// Weights that several stages of a pipeline use, such as an embedding that is also the head.
#pragma once

#include <string>
#include <vector>

#include "intarsia/pipeline.h"
#include "pipeline/run/transfers.h"

namespace intarsia::pipeline {

/// Brings the values of owners to the stages that use them too, and gradients back. Its links are
/// its own, so that they need no order among those of a step.
///
/// COLLECTIVE, `share` and `give_back`: the ranks of owners and users, in the same order.
class SharedWeights {
 public:
  /// ValueError for an owner that is no parameter of a stage, and for a copy of other sizes.
  /// REQUIRES: places and stages outlive this.
  SharedWeights(World& world, const std::vector<Mesh>& places, std::vector<PipelineStage>& stages,
                const std::string& name);

  void share(const Schedule& schedule);
  void give_back(const Schedule& schedule);
  /// After a failure.
  void forget() { connections_.links.clear(); }

 private:
  struct Use {
    SharedWeight* weight;
    int owner;  // stages
    int user;
  };
  /// What comes next on a link, into memory of its own.
  at::Tensor arrived(Link& link, const Boundary& type, const std::string& what);

  World& world_;
  const std::vector<Mesh>& places_;
  Connections connections_;
  std::vector<Use> uses_;
};

}  // namespace intarsia::pipeline
