// World: the processes of a job, and the groups of ranks in which they talk.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "intarsia/ledger.h"
#include "intarsia/mesh.h"
#include "intarsia/rendezvous.h"

namespace c10d {
class Backend;
class ProcessGroup;
}  // namespace c10d

namespace intarsia {

class Groups;
class GroupSlot;
class PlanCache;
class Wire;
struct Topology;
struct HostedGroups;

/// How slow a wire is made, for tests and to see what a slower one would cost: no collective ends
/// before `latency + bytes / bytes_per_second`, and those of one group follow each other.
struct WireDelay {
  std::chrono::microseconds latency{0};
  double bytes_per_second = 0;  ///< 0: only the latency counts
};

struct WorldOptions {
  /// "gloo", "shm" (shared memory in groups whose ranks are all on one host, Gloo in others),
  /// "nccl" or "ucc". Empty: what the variable INTARSIA_BACKEND names, or the usual one for the
  /// device.
  std::string backend = {};
  /// Where tensors of this process live. Unset: the CPU, or with NCCL the CUDA device numbered by
  /// the local rank; with an adopted group that is not for the CPU, that group's. One that this
  /// process cannot use is an UnsupportedError that says why.
  std::optional<at::Device> device = std::nullopt;
  /// How long a collective, or the making of a group, may wait for the other ranks.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  Launcher launcher = Launcher::detect;
  /// How many calls the ledger keeps.
  std::size_t ledger_entries = 4096;
  /// A file with what moving data costs (see Topology), by which redistributions are planned. Rank
  /// 0 reads it for all. Empty: what the variable INTARSIA_TOPOLOGY names, or Topology::standard().
  std::string topology = {};
  /// Delays every collective. Unset: what the variable INTARSIA_WIRE_DELAY says, as
  /// `latency_us,bytes_per_second`, or no delay.
  std::optional<WireDelay> wire_delay = std::nullopt;
};

/// A rank that lives in this process, and its place in a group.
struct Member {
  std::int64_t rank = 0;
  std::int64_t index = 0;
};

/// The ranks that differ only along some axes of a mesh: for every rank hosted here, the group that
/// it belongs to. A handle, cheap to copy; keep it rather than asking for it again. The group
/// behind it is made on the first collective, by its members only. In lockstep it stands for all
/// groups along these axes, whose members all live here.
///
/// Dropping handles is no collective, and needs no order among ranks: a group to which no rank has
/// had a handle for a while gives its connections back, and is made anew if it is asked for again.
class Comm {
 public:
  /// The number of ranks in each group.
  std::int64_t size() const { return size_; }
  /// The hosted ranks that take part; none when this process is outside the mesh.
  std::span<const Member> members() const { return members_; }
  /// The place in the group of the one rank hosted here. REQUIRES: exactly one member.
  std::int64_t index() const;
  /// Makes the group now. COLLECTIVE: all ranks of the group.
  void connect() const;
  /// The group's number in the ledger. REQUIRES: a member in this process, and more than one rank.
  std::uint32_t ledger_group() const;
  /// What all members call it: the ranks as a mesh, such as `[g=4:2]+1`. A group that makes no
  /// calls, because it has one rank or none in this process, is named by its axes and mesh, as are
  /// the groups of lockstep.
  const std::string& name() const { return name_; }

 private:
  friend class World;
  friend struct CommAccess;
  Comm() = default;
  std::shared_ptr<Wire> wire() const;

  std::int64_t size_ = 1;
  std::vector<Member> members_;
  std::string name_;
  std::shared_ptr<GroupSlot> slot_;             // holds the wire once it is made
  std::shared_ptr<const HostedGroups> hosted_;  // where all members live here
};

/// Makes the backend of a group: `name` is the same on all members, `index` this rank's place.
using BackendMaker = std::function<c10::intrusive_ptr<c10d::Backend>(
    const std::string& name, int index, const std::vector<std::int64_t>& ranks)>;

/// What a world is made of, for those who bring their own transport.
struct WorldParts {
  /// The ranks that live in this process: one; none, outside every mesh; or all (lockstep).
  std::vector<std::int64_t> hosted = {0};
  std::int64_t size = 1;
  int local_rank = 0;
  at::Device device = at::kCPU;
  c10::intrusive_ptr<c10d::Store> store = {};
  BackendMaker make_backend = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  std::size_t ledger_entries = 4096;
  /// Other ranks of the world live in this process too, as threads: what is one per process, such
  /// as torch's default generator, is then not one per rank.
  bool shares_process = false;
  /// Tensors have sizes and no values, and nothing is sent: see simulate.h.
  bool simulated = false;
  /// Runs last when the world closes.
  std::function<void()> on_close = {};
};

/// Who this process is and how it reaches the others.
///
/// A World owns every group made through it, and closes them in order: when it is destroyed, when
/// `close` is called, or at the latest when the process exits.
///
/// A process that is forked from one with a world, such as a worker that loads data, leaves it
/// alone: using it there is a WorldError, and neither `close` nor the exit of the fork closes it.
/// Such a process may work with plain tensors, and connect a world of its own.
///
/// THREADS: functions may be called from any thread; collectives over one group must come in the
/// same order on all its ranks.
class World : public std::enable_shared_from_this<World> {
 public:
  /// Meets the other processes as the launcher says; a process without a launcher is a world of
  /// one. With other processes SIGPIPE is ignored from then on, as in Python, unless the program
  /// handles it: writing to one that is gone is an error that is told, not the end of this one.
  /// COLLECTIVE: all processes of the job.
  static std::shared_ptr<World> connect(const WorldOptions& options = {});
  static std::shared_ptr<World> connect(const Rendezvous& rendezvous,
                                        const WorldOptions& options = {});

  /// Uses a process group that someone else made: the one that torch.distributed registered under
  /// this name, or the one that is passed. Smaller groups are made through its store.
  static std::shared_ptr<World> adopt(const std::string& group_name,
                                      const WorldOptions& options = {});
  static std::shared_ptr<World> adopt(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                      const WorldOptions& options = {});

  /// A world of given parts.
  static std::shared_ptr<World> assemble(WorldParts parts);

  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// The one rank hosted here. REQUIRES: exactly one. Code that branches on its rank cannot run in
  /// lockstep; run_in_process gives each rank a thread.
  std::int64_t rank() const;
  std::int64_t size() const { return parts_.size; }
  std::span<const std::int64_t> hosted() const { return parts_.hosted; }
  int local_rank() const { return parts_.local_rank; }
  /// The device that distributed tensors say they are on.
  at::Device device() const { return parts_.device; }
  /// The device that their pieces are on: the same or, in a simulated world, the meta device.
  at::Device piece_device() const {
    return parts_.simulated ? at::Device(at::kMeta) : parts_.device;
  }
  /// Whether it plays one rank of a world without the others and without values.
  bool simulated() const { return parts_.simulated; }
  bool shares_process() const { return parts_.shares_process; }
  /// Whether every rank lives in this process, and all move together.
  bool in_lockstep() const { return parts_.hosted.size() > 1; }
  /// Shared by all processes of the world; null once it is closed. WorldError in a fork.
  const c10::intrusive_ptr<c10d::Store>& store() const;
  std::chrono::milliseconds timeout() const { return parts_.timeout; }
  Ledger& ledger() { return *ledger_; }
  const Ledger& ledger() const { return *ledger_; }
  /// The same, which outlives the world as long as errors of results under way may quote it.
  std::shared_ptr<Ledger> shared_ledger() const { return ledger_; }

  /// Whether the calls of its ranks are compared: see docs/guard.md.
  bool guarded() const;
  /// Compares a value that is the same on all ranks of a mesh, in a right program, with that of the
  /// ranks that came here before. Sends nothing and waits for nobody. Where one differs, the next
  /// call of these ranks, or check_trouble, is a WorldError that says `what` and `way_out`. Does
  /// nothing where no guard is.
  void check_value(const Mesh& mesh, std::string_view what, std::uint64_t hash,
                   std::string_view way_out);
  /// WorldError if a value differs, or with what another rank of the mesh was told, if one was.
  void check_trouble(const Mesh& mesh);

  /// The groups along the named axes of a mesh, fused into one when there are several: the first
  /// varies slowest. Communicates nothing. REQUIRES: the mesh holds only ranks of this world.
  /// `purpose`: groups of the same ranks for different purposes are different groups, so that calls
  /// for one need no common order with those for the other.
  Comm along(const Mesh& mesh, std::span<const std::string> axes, std::string_view purpose = {});
  Comm along(const Mesh& mesh, std::initializer_list<std::string> axes);
  /// One group of all ranks.
  Comm everyone();

  /// The plans of redistributions, by the world's topology.
  PlanCache& plans() { return *plans_; }  // see plan.h
  /// Plans from now on by another topology. All ranks must do it, with the same one, between the
  /// same calls. Ops that ran already keep the plans that they made.
  void set_topology(const Topology& topology);

  /// Closes all groups, the last made first, then the store. Using them afterwards is a WorldError.
  /// The process that serves the store waits for the others to say goodbye, at most 10 s, and after
  /// a failure at most half a second for the next one; the store itself lives until the process
  /// exits, so that `connect` may be called again.
  void close();
  bool closed() const;

  /// Something that an upper layer keeps for each world: made on first use, and dropped with the
  /// world.
  class Extension {
   public:
    virtual ~Extension() = default;
  };
  using ExtensionMaker = std::unique_ptr<Extension> (*)(World&);
  Extension& extension(ExtensionMaker make);

 private:
  explicit World(WorldParts parts);
  std::shared_ptr<GroupSlot> slot_for(const std::string& name, const Mesh& group,
                                      std::int64_t index);
  Comm hosted_along(const Mesh& mesh, std::span<const std::string> axes, std::string_view purpose);

  WorldParts parts_;
  std::shared_ptr<Ledger> ledger_;
  std::unique_ptr<PlanCache> plans_;
  std::unique_ptr<Groups> groups_;
  std::mutex extensions_mutex_;
  std::vector<std::pair<ExtensionMaker, std::unique_ptr<Extension>>> extensions_;
};

}  // namespace intarsia
