// Wire: how the ranks of a group exchange flat buffers. The one place where collectives are called.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "intarsia/ledger.h"
#include "intarsia/placement.h"
#include "intarsia/world.h"
#include "world/collectives/backend_reductions.h"
#include "world/guard/guard.h"
#include "world/transport/forks.h"

namespace intarsia {

/// What for and where a collective was asked for, for the ledger.
struct CallSite {
  const Call& call;
  std::source_location where;
};

/// What an error needs to say which group failed, and what its rank did before; and what must live
/// as long as the backend.
struct WireContext {
  std::string group;
  std::shared_ptr<const Ledger> ledger;
  /// Set when a call fails.
  std::shared_ptr<std::atomic<bool>> failed;
  /// Compares the calls of the members; null where nobody does.
  std::shared_ptr<GuardedGroup> guard;
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
  std::uint64_t number = 0;                ///< of the collective, as the guard counts
  bool in_slices = false;  ///< waiting may end before the call does, and begin again
};
using Counts = std::vector<std::int64_t>;

/// The group of a wire.
struct WireGroup {
  std::string name;
  std::uint32_t in_ledger;
  std::shared_ptr<std::atomic<bool>> failed;  ///< is set when a call fails
  std::weak_ptr<const void> held;             ///< by calls that are under way
  std::shared_ptr<GuardedGroup> guard = {};   ///< null where calls are not compared
};

/// Exchanges flat, contiguous buffers among the ranks of one group, for the one of them that lives
/// here, over a c10d backend. Every call is recorded in the ledger before it is made, and no call
/// waits for another: what is called in the same order on all ranks stays in order. What is not,
/// the guard finds.
///
/// Calls return at once; buffers must stay alive until the works are waited for. Failures of the
/// backend become WorldErrors that name group, rank and call.
class Wire {
 public:
  Wire(c10::intrusive_ptr<c10d::Backend> backend, World& world, WireGroup group);
  /// Ends what is under way.
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// Buffers may be typed as bytes; `dtype` is what they hold.
  Works all_gather(const at::Tensor& out, const at::Tensor& in, at::ScalarType dtype,
                   CallSite site);
  Works all_reduce(const at::Tensor& inout, Reduction how, at::ScalarType dtype, CallSite site);
  Works reduce_scatter(const at::Tensor& out, const at::Tensor& in, Reduction how,
                       at::ScalarType dtype, CallSite site);
  /// `counts` are elements to and from each rank of the group.
  Works all_to_all(const at::Tensor& out, const at::Tensor& in, const Counts& out_counts,
                   const Counts& in_counts, at::ScalarType dtype, CallSite site);
  Works broadcast(const at::Tensor& inout, std::int64_t root, at::ScalarType dtype, CallSite site);
  /// The rank at i sends to the one at `to[i]`; what arrives comes from the rank that sends here.
  Works permute(const at::Tensor& out, const at::Tensor& in, const Counts& to, at::ScalarType dtype,
                CallSite site);
  Works barrier(CallSite site);

  /// What of reductions is left to the backend.
  const BackendReductions& reductions() const { return reductions_; }

 private:
  /// Tells the guard of a collective before it is made. `bytes`: those that all ranks hand over, or
  /// 0 where they may differ. WorldError if ranks disagree.
  std::uint64_t enter(std::string_view what, at::ScalarType dtype, std::int64_t bytes,
                      std::string_view detail, const Call& call);
  /// A collective of one call. `detail`: what else all ranks must agree on.
  template <class Start>
  Works call(CallKind kind, const at::Tensor& payload, at::ScalarType dtype, CallSite site,
             const Start& backend_call, std::string_view detail = {});
  /// One of the calls of a collective that was begun.
  template <class Start>
  Works part(CallKind kind, const at::Tensor& payload, at::ScalarType dtype, CallSite site,
             const Start& backend_call, std::uint64_t number);
  template <class Start>
  Works start(CallKind kind, const Start& backend_call, std::uint64_t number, const Call& call);

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string kind_;
  BackendReductions reductions_;
  bool in_slices_;
  std::shared_ptr<Ledger> ledger_;
  std::shared_ptr<WireContext> context_;
  std::uint32_t group_;
  std::weak_ptr<const void> held_;
  at::Device device_;
  std::chrono::milliseconds timeout_;
};

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
