// Lockstep: one process hosts every rank, and the program runs once.
//
// For tests, debuggers and notebooks: a distributed program for 8 or 256 ranks without a launcher.
// A tensor holds the pieces of all ranks; each op runs once for each of them, and collectives copy.
// Values are those of a run on as many processes, up to the order in which partial values are
// added: here it is that of the ranks.
//
// `full`, factories, modules and optimizers work as everywhere. What differs from rank to rank
// belongs in `local_region`, whose body runs once for each rank; `locals` gives all pieces. Code
// that branches on its rank, and collectives called by some ranks only, need run_in_process.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "intarsia/mesh.h"
#include "intarsia/world.h"

namespace intarsia {

/// A world of `ranks` ranks, all of which live here.
std::shared_ptr<World> lockstep_world(std::int64_t ranks, at::Device device = at::kCPU);

/// A lockstep world and a mesh of all its ranks, closed at the end of the scope.
///
///     Lockstep lockstep("[dp=4,tp=2]");
///     at::Tensor x = randn({64, 32}, Layout::parse("S(0),R", lockstep.mesh()), lockstep.world());
class Lockstep {
 public:
  explicit Lockstep(const Mesh& mesh, at::Device device = at::kCPU);
  explicit Lockstep(std::string_view mesh, at::Device device = at::kCPU);
  ~Lockstep();
  Lockstep(const Lockstep&) = delete;
  Lockstep& operator=(const Lockstep&) = delete;

  World& world() const { return *world_; }
  const Mesh& mesh() const { return mesh_; }

 private:
  Mesh mesh_;
  std::shared_ptr<World> world_;
};

}  // namespace intarsia
