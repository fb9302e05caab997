#include "pipeline/run/shared_weights.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "pipeline/run/words.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia::pipeline {
namespace {

/// The stage that has a parameter.
int owner_of(const SharedWeight& shared, const std::vector<PipelineStage>& stages) {
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const auto& [parameter, tensor] : stages[s].parameters) {
      if (tensor.is_same(shared.owner)) return static_cast<int>(s);
    }
  }
  fail<ValueError>(kWhere, "a shared weight, ", describe(shared.owner),
                   ", is no parameter of another stage; name it among its parameters");
}

}  // namespace

SharedWeights::SharedWeights(World& world, const std::vector<Mesh>& places,
                             std::vector<PipelineStage>& stages, const std::string& name)
    : world_(world), places_(places), connections_{world, places, concat(name, " weights")} {
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (SharedWeight& shared : stages[s].shared) {
      const int owner = owner_of(shared, stages);
      if (shared.owner.sizes() != shared.copy.sizes() || !shared.copy.is_leaf()) {
        fail<ValueError>(kWhere, "the copy of a shared weight is ", describe(shared.copy), " of ",
                         describe(shared.owner), "; it is a leaf of the same sizes");
      }
      uses_.push_back({&shared, owner, static_cast<int>(s)});
    }
  }
}

void SharedWeights::share(const Schedule& schedule) {
  const at::NoGradGuard no_grad;
  for (const Use& use : uses_) {
    const int owner = schedule.rank_of_stage[static_cast<std::size_t>(use.owner)];
    const int user = schedule.rank_of_stage[static_cast<std::size_t>(use.user)];
    const Mesh& from = places_[static_cast<std::size_t>(owner)];
    const Mesh& to = places_[static_cast<std::size_t>(user)];
    SharedWeight& shared = *use.weight;
    if (owner == user) {
      if (hosts_any(world_, from)) shared.copy.copy_(shared.owner);
      continue;
    }
    Link& link = connections_.link(owner, user, false);
    const std::string what = "a weight that stages share";
    const Boundary type = boundary_of(kWhere, {shared.owner.detach()}, from, to);
    if (hosts_any(world_, from)) link.send({shared.owner.detach()}, type, what, false);
    if (hosts_any(world_, to)) shared.copy.copy_(arrived(link, type, what));
  }
}

void SharedWeights::give_back(const Schedule& schedule) {
  const at::NoGradGuard no_grad;
  for (const Use& use : uses_) {
    const int owner = schedule.rank_of_stage[static_cast<std::size_t>(use.owner)];
    const int user = schedule.rank_of_stage[static_cast<std::size_t>(use.user)];
    const Mesh& from = places_[static_cast<std::size_t>(user)];
    const Mesh& to = places_[static_cast<std::size_t>(owner)];
    SharedWeight& shared = *use.weight;
    at::Tensor gradient;
    if (hosts_any(world_, from)) gradient = std::exchange(shared.copy.mutable_grad(), {});
    if (owner != user) {
      Link& link = connections_.link(user, owner, true);
      const std::string what = "the gradient of a weight that stages share";
      const Boundary type = boundary_of(kWhere, {shared.copy.detach()}, from, to);
      if (hosts_any(world_, from)) link.send({gradient}, type, what, false);
      gradient = hosts_any(world_, to) ? arrived(link, type, what) : at::Tensor();
    }
    if (!gradient.defined()) continue;
    at::Tensor& sum = shared.owner.mutable_grad();
    sum = sum.defined() ? sum.add_(gradient) : gradient;
  }
  for (auto& [key, link] : connections_.links) link.finish_sending();
}

at::Tensor SharedWeights::arrived(Link& link, const Boundary& type, const std::string& what) {
  if (world_.in_lockstep()) return link.take(0)[0];
  const auto fresh = [&](std::size_t /*peer*/, std::int64_t bytes) {
    return at::empty({bytes}, at::TensorOptions(at::kByte).device(world_.device()));
  };
  return link.wait(link.receive(type, what, fresh))[0];
}

}  // namespace intarsia::pipeline
