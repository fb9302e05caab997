// The groups of a world: connected on first use, and closed when no rank needs them any more.
//
// When a rank drops its last handle nothing happens: another rank may be in its last call, or keep
// its handle, and handles are made and dropped all the time. Only when a rank connects another
// group it gives up those that it has not asked for in a while (GroupUse), and closes what all have
// given up. So groups that come and go are bounded in number, and those that stay cost nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "intarsia/world.h"
#include "world/collectives/wire.h"
#include "world/guard/guard.h"
#include "world/session/group_use.h"
#include "world/transport/backends.h"
#include "world/transport/forks.h"

namespace intarsia {

class Groups;

/// The ranks of a group along one axis.
std::vector<std::int64_t> ranks_along(const Mesh& group);

/// A group by its name, which its members share, and they.
struct GroupRanks {
  std::string name;
  std::vector<std::int64_t> ranks;
};

/// One group; its wire is made on first use. Handles and calls under way share it with its world.
class GroupSlot : public std::enable_shared_from_this<GroupSlot> {
 public:
  GroupSlot(World& world, Groups& groups, const BackendMaker& make_backend, const Mesh& ranks,
            std::string name, std::int64_t index);
  ~GroupSlot() { drop_wire(); }
  GroupSlot(const GroupSlot&) = delete;
  GroupSlot& operator=(const GroupSlot&) = delete;

  const std::string& name() const { return name_; }
  std::uint32_t ledger_group() const { return ledger_group_; }

  /// COLLECTIVE: all ranks of the group, where it is not connected.
  std::shared_ptr<Wire> connected();
  /// Takes a backend that someone else made. It is never given up.
  void use(Backend backend);
  void close();

  /// Gives the group up, unless a handle or a call under way has it, and closes it if no rank needs
  /// it. Whether nothing is left of it. REQUIRES: the caller and `Groups` have one reference each.
  bool give_up();

 private:
  std::vector<std::int64_t> members() const;
  void make();
  /// `before`: how often the group was made. Null where calls are not compared.
  std::shared_ptr<GuardedGroup> join_guard(std::int64_t before) const;
  void set_wire(Backend backend, std::shared_ptr<GuardedGroup> guarded);
  void drop_wire();

  World& world_;
  Groups& groups_;
  const BackendMaker& make_backend_;
  Mesh ranks_;  // along one axis
  std::string name_;
  int index_;
  std::uint32_t ledger_group_;
  std::uint32_t forks_;  // when its world was made
  std::mutex mutex_;
  bool closed_ = false;
  std::shared_ptr<Wire> wire_;
  std::optional<GroupUse> use_;  // unset: never given up
  bool given_up_ = false;
};

/// All groups of a world. THREADS: any.
class Groups {
 public:
  using SlotPtr = std::shared_ptr<GroupSlot>;

  /// The group of a name, made by `make` if there is none. WorldError after `close`.
  template <class Make>
  SlotPtr find(const std::string& name, const Make& make) {
    const std::scoped_lock lock(mutex_);
    check_open();
    Entry& entry = by_name_[name];
    if (!entry.slot) entry = {make(), ++made_};
    entry.asked = made_;
    return entry.slot;
  }

  /// In lockstep: what stands for all groups along some axes.
  std::optional<Comm> find_hosted(const std::string& name) const;
  Comm keep_hosted(const std::string& name, Comm comm);

  /// Gives up groups without handles, and closes those that no rank needs. Some at a time, the
  /// longest unused first.
  void give_up_unused();

  /// The groups of a rank along each axis of a mesh with several ranks. REQUIRES: the mesh contains
  /// the rank, which is the same in all calls.
  const std::vector<GroupRanks>& around(const Mesh& mesh, std::int64_t rank);

  /// Compares the calls of groups that are made from now on.
  void guard_by(std::shared_ptr<Guard> guard) { guard_ = std::move(guard); }
  const std::shared_ptr<Guard>& guard() const { return guard_; }

  /// Whether a call or the making of a group failed, so that ranks may be gone. It outlives the
  /// world.
  const std::shared_ptr<std::atomic<bool>>& failed() const { return failed_; }
  /// Whether this process is a fork of the one that made them.
  bool inherited() const { return forks_ != forks(); }
  std::uint32_t made_after_forks() const { return forks_; }

  /// Closes all, the last made first. False: they were closed before.
  bool close();
  bool closed() const;

 private:
  struct Entry {
    SlotPtr slot = nullptr;
    std::uint64_t made = 0;   // the how manieth it was
    std::uint64_t asked = 0;  // how many there were when it was last asked for
  };
  void check_open() const;
  std::vector<SlotPtr> unused();

  std::shared_ptr<std::atomic<bool>> failed_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<Guard> guard_;
  std::uint32_t forks_ = forks();
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::uint64_t made_ = 0;
  std::map<std::string, Entry> by_name_;
  std::map<std::string, Comm> hosted_;
  std::map<std::size_t, std::list<std::pair<Mesh, std::vector<GroupRanks>>>> around_;  // by hash
};

}  // namespace intarsia
