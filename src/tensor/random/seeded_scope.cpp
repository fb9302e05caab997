#include "tensor/random/seeded_scope.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "tensor/move/state.h"

namespace intarsia {

SeededScope::SeededScope(World& world, std::uint64_t seed) : world_(world) {
  if (world.shares_process()) {
    before_ = TensorState::of(world).draws().exchange(at::detail::createCPUGenerator(seed));
    return;
  }
  std::vector<at::Generator> generators{at::detail::getDefaultCPUGenerator()};
  if (!world.device().is_cpu()) {
    generators.push_back(at::globalContext().defaultGenerator(world.device()));
  }
  for (at::Generator& generator : generators) {
    const std::scoped_lock lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
    generator.set_current_seed(seed);
  }
}

SeededScope::~SeededScope() {
  if (before_) TensorState::of(world_).draws().exchange(*before_);
  for (auto& [generator, state] : states_) {
    const std::scoped_lock lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace intarsia
