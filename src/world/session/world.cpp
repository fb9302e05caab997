#include "intarsia/world.h"

#include <algorithm>
#include <csignal>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/order.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/plan.h"
#include "world/collectives/hosted.h"
#include "world/collectives/wire.h"
#include "world/session/groups.h"
#include "world/session/live_worlds.h"
#include "world/session/meeting.h"
#include "world/transport/backends.h"
#include "world/transport/delayed_backend.h"
#include "world/transport/devices.h"
#include "world/transport/forks.h"

namespace intarsia {

// ---- Comm
// ----------------------------------------------------------------------------------------

std::int64_t Comm::index() const {
  if (members_.size() != 1) {
    fail<ValueError>("Comm::index", "this process hosts ", members_.size(), " members of group ",
                     name_, "; ask members() for their places");
  }
  return members_[0].index;
}

std::shared_ptr<Wire> Comm::wire() const {
  if (!slot_ || hosted_) {
    fail<ValueError>("Comm", "this process hosts ", hosted_ ? "every" : "no", " member of group ",
                     name_);
  }
  return slot_->connected();
}

void Comm::connect() const {
  if (!members_.empty() && size_ > 1 && !hosted_) wire();
}

std::uint32_t Comm::ledger_group() const {
  if (!slot_) {
    fail<ValueError>("Comm::ledger_group", "group ", name_,
                     " is not in the ledger: it has one rank, or none in this process");
  }
  return slot_->ledger_group();
}

// ---- connecting ---------------------------------------------------------------------------------

namespace {

/// Rank 0's process serves the store: it must outlive the others' last look at it. After a failure
/// some may never come: then it waits only as long as others do.
void say_goodbye(c10d::Store& store, int size, bool serves, bool failed) {
  using Clock = std::chrono::steady_clock;
  const auto patience = failed ? std::chrono::milliseconds(500) : std::chrono::seconds(10);
  auto news = Clock::now();
  std::int64_t left = store.add("intarsia/goodbye", 1);
  while (serves && left < size && Clock::now() - news < patience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::int64_t now = store.add("intarsia/goodbye", 0);
    if (failed && now != left) news = Clock::now();
    left = now;
  }
}

at::Device choose_device(const WorldOptions& options, const std::string& backend, int local_rank) {
  if (options.device) return *options.device;
  if (backend == "nccl") return {at::kCUDA, static_cast<c10::DeviceIndex>(local_rank)};
  return at::kCPU;
}

/// Where none is named: the CPU if the group can, else what it was bound to or its thread uses.
at::Device adopted_device(c10d::ProcessGroup& group, const WorldOptions& options) {
  if (options.device) return *options.device;
  if (!group.hasBackends() || group.hasBackendForDeviceType(at::kCPU)) return at::kCPU;
  if (const auto bound = group.getBoundDeviceId()) return *bound;
  return current_device(group.getDeviceTypes().front().type());
}

std::string choose_backend(const WorldOptions& options) {
  if (!options.backend.empty()) return options.backend;
  if (const auto named = process_environment()("INTARSIA_BACKEND")) return *named;
  return options.device && options.device->is_cuda() ? "nccl" : "gloo";
}

/// The backend, delayed where the options or the environment say so.
Backend with_delay(Backend backend, const WorldOptions& options) {
  const auto delay =
      options.wire_delay ? options.wire_delay : read_wire_delay(process_environment());
  return delay ? delay_backend(std::move(backend), *delay) : backend;
}

BackendMaker backend_maker(std::string backend, c10::intrusive_ptr<c10d::Store> store,
                           const WorldParts& parts, std::string address,
                           const WorldOptions& options) {
  return [=, timeout = parts.timeout, device = parts.device](
             const std::string& name, int index, const std::vector<std::int64_t>& ranks) {
    BackendRequest request;
    request.store = c10::make_intrusive<c10d::PrefixStore>(concat("intarsia/group/", name), store);
    request.index = index;
    request.size = static_cast<int>(ranks.size());
    request.ranks = ranks;
    request.timeout = timeout;
    request.device = device;
    request.address = address;
    return with_delay(make_backend(backend, request), options);
  };
}

}  // namespace

// ---- World --------------------------------------------------------------------------------------

World::World(WorldParts parts)
    : parts_(std::move(parts)),
      ledger_(std::make_shared<Ledger>(parts_.ledger_entries)),
      plans_(std::make_unique<PlanCache>()),
      groups_(std::make_unique<Groups>()) {
  LiveWorlds::instance().add(this);
}

World::~World() {
  LiveWorlds::instance().remove(this);
  close();
  if (groups_->inherited()) (void)groups_.release();  // with connections and threads of the parent
}

std::shared_ptr<World> World::assemble(WorldParts parts) {
  const auto hosted = static_cast<std::int64_t>(parts.hosted.size());
  if (hosted > 1 && (hosted != parts.size || !is_order_of(parts.hosted, parts.size) ||
                     !std::is_sorted(parts.hosted.begin(), parts.hosted.end()))) {
    fail<ValueError>("World::assemble",
                     "a process hosts one rank, none, or all in their order, not ", hosted, " of ",
                     parts.size, " (", join(parts.hosted), ")");
  }
  if (parts.size < 1 || parts.ledger_entries < 1) {
    fail<ValueError>("World::assemble", "a world has at least one rank and a ledger of one entry");
  }
  for (const std::int64_t rank : parts.hosted) {
    if (rank < 0 || rank >= parts.size) {
      fail<ValueError>("World::assemble", "rank ", rank, " is not in a world of size ", parts.size);
    }
  }
  return std::shared_ptr<World>(new World(std::move(parts)));
}

namespace {

/// The topology that the options or the environment name, as rank 0 reads it: ranks that planned by
/// different ones would wait for each other for ever.
std::shared_ptr<World> with_topology(std::shared_ptr<World> world, const WorldOptions& options) {
  std::string path = options.topology;
  if (path.empty()) path = process_environment()("INTARSIA_TOPOLOGY").value_or("");
  if (path.empty()) return world;
  constexpr const char* kKey = "intarsia/topology";
  const auto& store = world->store();
  if (world->rank() == 0 || !store) {
    const Topology topology = Topology::load(path);
    const std::string text = topology.to_json();
    if (store) store->set(kKey, std::vector<std::uint8_t>(text.begin(), text.end()));
    world->set_topology(topology);
  } else {
    const std::vector<std::uint8_t> text = store->get(kKey);
    world->set_topology(Topology::parse(std::string(text.begin(), text.end())));
  }
  return world;
}

}  // namespace

namespace {

/// A write to a process that is gone is an error of that call. Left to its default, the signal
/// would end this process without a word, though it is the one that could tell what has happened.
void survive_closed_connections() {
  struct sigaction now {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace

std::shared_ptr<World> World::connect(const WorldOptions& options) {
  return connect(read_rendezvous(process_environment(), options.launcher), options);
}

std::shared_ptr<World> World::connect(const Rendezvous& r, const WorldOptions& options) {
  const std::string backend = choose_backend(options);
  check_backend(backend);
  WorldParts parts;
  parts.hosted = {r.rank};
  parts.size = r.size;
  parts.local_rank = r.local_rank;
  parts.device = choose_device(options, backend, r.local_rank);
  check_device(parts.device, backend);
  parts.timeout = options.timeout;
  parts.ledger_entries = options.ledger_entries;
  if (r.size == 1) {
    parts.store = c10::make_intrusive<c10d::HashStore>();
    return with_topology(assemble(std::move(parts)), options);
  }
  survive_closed_connections();
  const bool serves = r.rank == 0 && r.rank0_serves;
  const auto store = meet(r, options.timeout);
  register_rank(*store, Attendance::of(r, backend), serves, options.timeout);
  parts.store = store;
  parts.make_backend = backend_maker(backend, store, parts, r.address, options);
  auto world = assemble(std::move(parts));
  world->groups_->guard_by(Guard::make(store, r.rank, r.size, options.timeout));
  world->parts_.on_close = [store, serves, size = r.size, failed = world->groups_->failed()] {
    say_goodbye(*store, size, serves, failed->load());
  };
  return with_topology(std::move(world), options);
}

std::shared_ptr<World> World::adopt(const std::string& group_name, const WorldOptions& options) {
  return adopt(registered_group("World::adopt", group_name), options);
}

std::shared_ptr<World> World::adopt(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                    const WorldOptions& options) {
  if (group->getSize() > 1) survive_closed_connections();
  const at::Device device = adopted_device(*group, options);
  const auto backend = group->getBackend(device.type());
  WorldParts parts;
  parts.hosted = {group->getRank()};
  parts.size = group->getSize();
  parts.device = device;
  parts.timeout = options.timeout;
  parts.ledger_entries = options.ledger_entries;
  if (const auto store = group->getStore()) {
    // Each rank counts its adoptions in the store itself, so that the n-th of all ranks meet.
    const std::int64_t nth = store->add(concat("intarsia/adoptions/", group->getRank()), 1);
    parts.store = c10::make_intrusive<c10d::PrefixStore>(concat("intarsia/adopted/", nth), store);
    parts.make_backend = backend_maker(backend->getBackendName(), parts.store, parts, "", options);
  } else {
    parts.make_backend = [](const std::string& name, int,
                            const std::vector<std::int64_t>&) -> Backend {
      fail<UnsupportedError>("World::adopt", "group ", name,
                             " cannot be made: the adopted process group has no store");
    };
  }
  auto world = assemble(std::move(parts));
  if (const auto& store = world->store(); store && has_backend(backend->getBackendName())) {
    const auto rank = static_cast<int>(world->rank());
    world->groups_->guard_by(
        Guard::make(store, rank, static_cast<int>(world->size()), options.timeout));
  }
  if (const Comm all = world->everyone(); all.slot_) all.slot_->use(with_delay(backend, options));
  return with_topology(std::move(world), options);
}

World::Extension& World::extension(ExtensionMaker make) {
  const std::scoped_lock lock(extensions_mutex_);
  for (const auto& [maker, made] : extensions_) {
    if (maker == make) return *made;
  }
  return *extensions_.emplace_back(make, make(*this)).second;
}

std::int64_t World::rank() const {
  if (parts_.hosted.size() != 1) {
    fail<ValueError>(
        "World::rank", "this process hosts ", parts_.hosted.size(),
        " ranks; hosted() lists them. In lockstep, code that depends on its rank belongs "
        "in local_region, or in run_in_process, which gives each rank a thread");
  }
  return parts_.hosted[0];
}

const c10::intrusive_ptr<c10d::Store>& World::store() const {
  // Its connection is the parent's.
  const bool is_shared = static_cast<std::int64_t>(parts_.hosted.size()) < parts_.size;
  if (is_shared && groups_->inherited()) fail_in_fork("the store of a world");
  return parts_.store;
}

bool World::guarded() const { return groups_->guard() != nullptr && !groups_->inherited(); }

void World::check_value(const Mesh& mesh, std::string_view what, std::uint64_t hash,
                        std::string_view way_out) {
  if (!guarded() || mesh.highest() >= size() || !mesh.contains(rank())) return;
  for (const GroupRanks& group : groups_->around(mesh, rank())) {
    groups_->guard()->check_value(group.name, group.ranks, what, hash, way_out);
  }
}

void World::check_trouble(const Mesh& mesh) {
  if (!guarded() || mesh.highest() >= size() || !mesh.contains(rank())) return;
  try {
    for (const GroupRanks& group : groups_->around(mesh, rank())) {
      groups_->guard()->check_trouble(group.name, group.ranks);
    }
  } catch (const GuardError&) {
    groups_->failed()->store(true);
    throw;
  }
}

std::shared_ptr<GroupSlot> World::slot_for(const std::string& name, const Mesh& group,
                                           std::int64_t index) {
  return groups_->find(name, [&] {
    return std::make_shared<GroupSlot>(*this, *groups_, parts_.make_backend, group, name, index);
  });
}

Comm World::along(const Mesh& mesh, std::span<const std::string> axes, std::string_view purpose) {
  if (closed()) fail<WorldError>("World::along", "the world is closed; connect a new one");
  Comm comm;
  if (mesh.highest() >= size()) {
    fail<ValueError>("World::along", mesh, " holds rank ", mesh.highest(), ", but this world has ",
                     size(), " ranks");
  }
  const std::string suffix = purpose.empty() ? std::string() : concat(" for ", purpose);
  if (in_lockstep()) return hosted_along(mesh, axes, purpose);
  for (const std::string& axis : axes) comm.size_ *= mesh.size(axis);
  comm.name_ = concat(join(axes, ">"), " of ", mesh);
  for (const std::int64_t rank : hosted()) {
    if (!mesh.contains(rank)) continue;
    comm.members_.push_back({rank, 0});
    if (comm.size_ == 1) continue;
    const Mesh group = mesh.slice(axes, rank).flatten(axes, "g");
    const std::int64_t index = (*group.coordinate_of(rank))[0];
    comm.members_.back().index = index;
    comm.slot_ = slot_for(group.to_string() + suffix, group, index);
    comm.name_ = comm.slot_->name();
  }
  return comm;
}

Comm World::hosted_along(const Mesh& mesh, std::span<const std::string> axes,
                         std::string_view purpose) {
  const std::string name =
      concat(join(axes, ">"), " of ", mesh, purpose.empty() ? "" : " for ", purpose);
  if (auto known = groups_->find_hosted(name)) return std::move(*known);
  Comm comm;
  comm.name_ = name;
  std::vector<std::size_t> along;
  for (const std::string& axis : axes) {
    along.push_back(mesh.axis_index(axis));
    comm.size_ *= mesh.size(axis);
  }
  auto groups = std::make_shared<HostedGroups>();
  std::map<std::int64_t, std::size_t> group_of;  // by its first rank
  for (const std::int64_t rank : hosted()) {
    const auto at = mesh.coordinate_of(rank);
    if (!at) continue;
    Coordinate first = *at;
    std::int64_t index = 0;
    for (const std::size_t a : along) {
      index = index * mesh.size(a) + (*at)[a];
      first[a] = 0;
    }
    const auto [group, is_new] = group_of.try_emplace(mesh.rank_at(first), groups->groups.size());
    if (is_new) groups->groups.emplace_back(static_cast<std::size_t>(comm.size_));
    groups->groups[group->second][static_cast<std::size_t>(index)] = comm.members_.size();
    comm.members_.push_back({rank, index});
  }
  if (comm.size_ > 1 && !comm.members_.empty()) {
    comm.slot_ = slot_for(name, mesh, 0);
    groups->ledger = ledger_;
    groups->ledger_group = comm.slot_->ledger_group();
    comm.hosted_ = std::move(groups);
  }
  return groups_->keep_hosted(name, std::move(comm));
}

Comm World::along(const Mesh& mesh, std::initializer_list<std::string> axes) {
  return along(mesh, std::span(axes.begin(), axes.size()));
}

void World::set_topology(const Topology& topology) {
  plans_ = std::make_unique<PlanCache>(topology);
}

Comm World::everyone() { return along(Mesh({{"all", size()}}), {"all"}); }

bool World::closed() const { return groups_->closed(); }

void World::close() {
  if (groups_->inherited() || !groups_->close()) return;
  try {
    if (parts_.on_close) parts_.on_close();
  } catch (const std::exception&) {
    // The store may be gone already: its process died, and with it the reason to say goodbye.
  }
  parts_.on_close = nullptr;
  parts_.make_backend = nullptr;
  parts_.store.reset();
}

}  // namespace intarsia
