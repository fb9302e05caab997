#include "tensor/core/draws.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {

Draws::Draws(World& world) : world_(world) {
  if (world.shares_process()) generator_ = at::detail::createCPUGenerator();
}

/// Refuses to draw from generators that began differently: every rank would get other values of
/// what all should hold alike.
void Draws::check_seeds() {
  const auto& store = world_.store();
  if (generator_ || world_.size() == 1 || !store || world_.hosted().size() != 1) return;
  const std::uint64_t mine = at::detail::getDefaultCPUGenerator().current_seed();
  const auto key = [](std::int64_t rank) { return concat("intarsia/seed/", rank); };
  const std::string text = std::to_string(mine);
  store->set(key(world_.rank()), std::vector<std::uint8_t>(text.begin(), text.end()));
  if (world_.rank() == 0) return;
  const std::vector<std::uint8_t> bytes = store->get(key(0));
  const std::string first(bytes.begin(), bytes.end());
  if (first == text) return;
  fail<WorldError>("random", "torch's default generator has seed ", text, " on rank ",
                   world_.rank(), " and ", first,
                   " on rank 0, so ranks would draw different values; call torch.manual_seed "
                   "(torch::manual_seed) with the same number on all ranks before the first random "
                   "op");
}

std::uint64_t Draws::next() {
  std::call_once(seeds_checked_, [&] { check_seeds(); });
  at::Generator generator = generator_ ? *generator_ : at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

void Draws::seed(std::uint64_t seed) {
  at::Generator generator = generator_ ? *generator_ : at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace intarsia
