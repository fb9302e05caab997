#include "intarsia/lockstep.h"

#include <numeric>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {

std::shared_ptr<World> lockstep_world(std::int64_t ranks, at::Device device) {
  if (ranks < 1) fail<ValueError>("lockstep_world", "a world of ", ranks, " ranks does not exist");
  WorldParts parts;
  parts.size = ranks;
  parts.hosted.resize(static_cast<std::size_t>(ranks));
  std::iota(parts.hosted.begin(), parts.hosted.end(), std::int64_t{0});
  parts.device = device;
  parts.store = c10::make_intrusive<c10d::HashStore>();
  return World::assemble(std::move(parts));
}

Lockstep::Lockstep(const Mesh& mesh, at::Device device)
    : mesh_(mesh), world_(lockstep_world(mesh.highest() + 1, device)) {}

Lockstep::Lockstep(std::string_view mesh, at::Device device)
    : Lockstep(Mesh::parse(mesh), device) {}

Lockstep::~Lockstep() { world_->close(); }

}  // namespace intarsia
