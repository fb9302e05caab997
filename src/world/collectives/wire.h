// Wire: how the ranks of a group exchange flat buffers. The one place where collectives are called.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <source_location>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "intarsia/ledger.h"
#include "intarsia/placement.h"
#include "intarsia/world.h"
#include "world/transport/forks.h"

namespace intarsia {

/// What is moved, what for, and where it was asked for. Buffers may be typed as bytes; `dtype` is
/// what they hold.
struct CallSite {
  at::ScalarType dtype;
  const Call& call;
  const std::source_location& where;
};

/// What an error needs to say which group failed, and what its rank did before; and what must live
/// as long as the backend.
struct WireContext {
  std::string group;
  std::shared_ptr<const Ledger> ledger;
  /// Set when a call fails.
  std::shared_ptr<std::atomic<bool>> failed;
  std::uint32_t forks = intarsia::forks();
  /// Calls whose results nobody waits for, because an exception passed by: their buffers.
  std::mutex mutex = {};
  std::vector<std::shared_ptr<void>> abandoned = {};
};

/// Calls of the backend that are under way.
struct Works {
  std::vector<c10::intrusive_ptr<c10d::Work>> list;
  std::shared_ptr<WireContext> context;
  std::shared_ptr<const void> group = {};  ///< is not given up meanwhile
};
using Counts = std::vector<std::int64_t>;

/// Exchanges flat, contiguous buffers among the ranks of one group, for all ranks hosted here: each
/// list has one tensor per hosted member. Every call is recorded in the ledger before it is made,
/// and no call waits for another: what is called in the same order on all ranks stays in order.
///
/// Calls return at once; buffers must stay alive until the works are waited for. Failures of the
/// backend become WorldErrors that name group, rank and call.
class Wire {
 public:
  virtual ~Wire() = default;

  virtual Works all_gather(at::TensorList out, at::TensorList in, CallSite site) = 0;
  virtual Works all_reduce(at::TensorList inout, Reduction how, CallSite site) = 0;
  virtual Works reduce_scatter(at::TensorList out, at::TensorList in, Reduction how,
                               CallSite site) = 0;
  /// `counts` are elements to and from each rank of the group, one list per member.
  virtual Works all_to_all(at::TensorList out, at::TensorList in,
                           const std::vector<Counts>& out_counts,
                           const std::vector<Counts>& in_counts, CallSite site) = 0;
  virtual Works broadcast(at::TensorList inout, std::int64_t root, CallSite site) = 0;
  /// Member i sends to the rank at `to[i]`; what arrives comes from the rank that sends here.
  virtual Works permute(at::TensorList out, at::TensorList in, const Counts& to, CallSite site) = 0;
  virtual Works barrier(CallSite site) = 0;

  /// Whether the backend itself reduces this dtype rightly and well; else collectives exchange and
  /// reduce locally.
  virtual bool reduces(at::ScalarType dtype, Reduction how) const = 0;
  virtual bool scatters_reduced(at::ScalarType dtype, Reduction how) const = 0;
};

/// The group of a wire.
struct WireGroup {
  std::string name;
  std::uint32_t in_ledger;
  std::shared_ptr<std::atomic<bool>> failed;  ///< is set when a call fails
  std::weak_ptr<const void> held;             ///< by calls that are under way
};

/// A wire over a c10d backend, for one hosted member.
std::unique_ptr<Wire> make_c10d_wire(c10::intrusive_ptr<c10d::Backend> backend, World& world,
                                     WireGroup group);

/// Lets the collectives reach the wire of a Comm.
struct CommAccess {
  static std::shared_ptr<Wire> wire(const Comm& comm) { return comm.wire(); }
  /// The groups, where all their members live here; null elsewhere.
  static const HostedGroups* hosted(const Comm& comm) { return comm.hosted_.get(); }
};

/// Waits, and turns a failure into a WorldError that names the collective and the group, with the
/// last calls that this rank made.
void wait_for(const Works& works, std::string_view what);

}  // namespace intarsia
