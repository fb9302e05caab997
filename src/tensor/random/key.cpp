#include "tensor/random/key.h"

#include <ATen/CPUGeneratorImpl.h>

#include <utility>

namespace intarsia {
namespace {

thread_local std::optional<std::uint64_t> t_key;

std::uint64_t drawn_from(at::Generator generator) {
  const std::scoped_lock lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

}  // namespace

KeyScope::KeyScope(std::uint64_t key) : before_(std::exchange(t_key, key)) {}
KeyScope::~KeyScope() { t_key = before_; }

std::uint64_t next_key(TensorState& state, const c10::IValue* generator) {
  if (t_key) return *t_key;
  if (generator != nullptr && generator->isGenerator()) {
    return drawn_from(generator->toGenerator());
  }
  return state.draws().next();
}

std::uint64_t next_plain_key() {
  return t_key ? *t_key : drawn_from(at::detail::getDefaultCPUGenerator());
}

void check_key(World& world, const Mesh& mesh, std::uint64_t key) {
  if (!world.guarded()) return;
  world.check_value(mesh, "the state of the generator that a random op draws from", key,
                    "ranks would draw different values of what all hold alike: call "
                    "torch.manual_seed with the same number on all ranks, and draw nothing on one "
                    "rank alone, not even a plain tensor");
}

void check_key(World& world, const Layout& layout, std::uint64_t key) {
  const Mesh& mesh = layout.mesh();
  if (!world.guarded() || !mesh.contains(world.rank())) return;
  std::vector<std::string> alike;
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    if (mesh.size(a) > 1 && !layout.placement(a).is_shard()) alike.push_back(mesh.name(a));
  }
  if (!alike.empty()) check_key(world, mesh.slice(alike, world.rank()), key);
}

}  // namespace intarsia
