// Links: what passes from the ranks of one place to those of another, one way.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "intarsia/collectives.h"
#include "pipeline/run/parcels.h"

namespace intarsia::pipeline {

/// Gives memory for what arrives: so many bytes from the peer of this number.
using BufferMaker = std::function<at::Tensor(std::size_t peer, std::int64_t bytes)>;

/// Tensors under way to this rank.
struct Arriving {
  std::shared_ptr<const Parcels> parcels;
  std::vector<at::Tensor> buffers;
  std::vector<Pending> pending;
};

/// Passes tensors from the ranks of one mesh to those of another, in the order in which they are
/// sent. Each pair of ranks has a group of its own, so that nothing here waits for other links.
///
/// A rank sends its piece to the rank at the same coordinate, where the meshes have the same axes;
/// otherwise to those that need parts of it. The two meshes share no rank.
class Link {
 public:
  /// `name`: the same on all ranks, and that of no other link. `may_miss`: of what a boundary says
  /// some may be undefined, as gradients are.
  Link(World& world, Mesh from, Mesh to, std::string name, bool may_miss);

  const Mesh& from() const { return from_; }
  const Mesh& to() const { return to_; }

  /// Makes the groups that it needs. COLLECTIVE: the ranks of both meshes.
  void open();
  /// Sends tensors as the boundary says, and returns. `what` names them for errors. `announces`:
  /// the boundary is sent before them. COLLECTIVE: the ranks of `from`, where something is partial.
  void send(const Tensors& values, const Boundary& boundary, const std::string& what,
            bool announces);
  /// Waits until everything was taken over by the backend.
  void finish_sending();

  /// The boundary of what comes next, which its sender announces. Waits for it.
  Boundary take_announcement(const std::string& what);
  /// Begins to receive what comes next.
  Arriving receive(const Boundary& boundary, const std::string& what, const BufferMaker& buffer);
  /// The tensors, on the mesh `to`; they share the memory of the buffers.
  Tensors wait(Arriving arriving);

  /// In lockstep, where all ranks live here: whether so many have come and were not taken, and the
  /// one of a number.
  bool has_come(std::size_t count) const { return here_.size() >= count; }
  Tensors take(std::size_t number);

 private:
  struct Sent {
    Pending pending;
    std::shared_ptr<at::Tensor> lease;
  };
  const Comm& channel(std::int64_t peer, bool sending);
  void post(std::int64_t peer, std::shared_ptr<at::Tensor> buffer, const std::string& what);
  void send_here(const Tensors& values, const Boundary& boundary);

  World& world_;
  Mesh from_;
  Mesh to_;
  std::string name_;
  bool may_miss_;
  ParcelTable parcels_;
  std::map<std::int64_t, Comm> channels_;  // by peer
  std::list<Sent> sent_;
  std::deque<Tensors> here_;
};

}  // namespace intarsia::pipeline
