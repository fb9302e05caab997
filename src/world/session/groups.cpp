#include "world/session/groups.h"

#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/guard/program.h"
#include "world/transport/away.h"
#include "world/transport/error_text.h"
#include "world/transport/forks.h"

namespace intarsia {

std::vector<std::int64_t> ranks_along(const Mesh& group) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t i = 0; i < group.size(); ++i) ranks.push_back(group.rank_at({i}));
  return ranks;
}

// ---- one group ----------------------------------------------------------------------------------

GroupSlot::GroupSlot(World& world, Groups& groups, const BackendMaker& make_backend,
                     const Mesh& ranks, std::string name, std::int64_t index)
    : world_(world),
      groups_(groups),
      make_backend_(make_backend),
      ranks_(ranks.orphan()),
      name_(std::move(name)),
      index_(static_cast<int>(index)),
      ledger_group_(world.ledger().add_group(name_)),
      forks_(groups.made_after_forks()) {}

std::shared_ptr<Wire> GroupSlot::connected() {
  if (forks_ != forks()) fail_in_fork(concat("group ", name_));
  const Away away;
  const std::scoped_lock lock(mutex_);
  if (closed_) fail<WorldError>("World", "group ", name_, " was used after its world was closed");
  if (wire_ && !given_up_) return wire_;
  try {
    if (given_up_ && !use_->take_back()) wire_.reset();
    given_up_ = false;
    if (!wire_) {
      groups_.give_up_unused();
      make();
    }
  } catch (const Error&) {
    groups_.failed()->store(true);
    throw;
  } catch (const std::exception& error) {
    groups_.failed()->store(true);
    fail<WorldError>("World", "group ", name_, " could not be made by rank ",
                     ranks_.rank_at({index_}), " (all of its ", ranks_.size(),
                     " members must use it): ", text_of(error));
  }
  return wire_;
}

std::vector<std::int64_t> GroupSlot::members() const { return ranks_along(ranks_); }

void GroupSlot::make() {
  if (const auto& store = world_.store(); store && !use_) {
    use_.emplace(store, name_, ranks_.size(), ranks_.rank_at({index_}));
  }
  const std::int64_t number = use_ ? use_->begin() : 0;
  const std::string name = number == 0 ? name_ : concat(name_, " #", number);
  const auto guarded = join_guard(number);
  // Where backends meet, nobody looks at what keeps the others away.
  if (guarded) {
    const Waiting waiting;
    guarded->meet(world_.timeout());
  }
  set_wire(make_backend_(name, index_, members()), guarded);
}

std::shared_ptr<GuardedGroup> GroupSlot::join_guard(std::int64_t before) const {
  const auto& guard = groups_.guard();
  return guard ? guard->join(name_, members(), before) : nullptr;
}

void GroupSlot::set_wire(Backend backend, std::shared_ptr<GuardedGroup> guarded) {
  WireGroup group{name_, ledger_group_, groups_.failed(), weak_from_this(), std::move(guarded)};
  wire_ = std::make_shared<Wire>(std::move(backend), world_, std::move(group));
}

/// The threads of a parent's wire are not in its fork, where ending it would wait for them.
void GroupSlot::drop_wire() {
  if (forks_ != forks()) new std::shared_ptr<Wire>(wire_);
  wire_.reset();
}

void GroupSlot::use(Backend backend) {
  const Away away;
  const std::scoped_lock lock(mutex_);
  use_.reset();
  set_wire(std::move(backend), join_guard(0));
}

void GroupSlot::close() {
  const Away away;
  const std::scoped_lock lock(mutex_);
  closed_ = true;
  drop_wire();
  use_.reset();
}

bool GroupSlot::give_up() {
  const Away away;
  const std::scoped_lock lock(mutex_);
  // A thread that gets a handle from now on waits for the mutex when it uses it.
  if (weak_from_this().use_count() > 2 || (wire_ && !use_)) return false;
  if (!wire_) return true;
  const bool over = given_up_ ? use_->is_over() : use_->give_up();
  given_up_ = !over;
  if (over) wire_.reset();
  return over;
}

// ---- all groups of a world ----------------------------------------------------------------------

void Groups::check_open() const {
  if (closed_) fail<WorldError>("World", "the world is closed; connect a new one");
}

const std::vector<GroupRanks>& Groups::around(const Mesh& mesh, std::int64_t rank) {
  const std::scoped_lock lock(mutex_);
  for (const auto& [known, groups] : around_[mesh.hash()]) {
    if (known == mesh) return groups;
  }
  std::vector<GroupRanks> groups;
  for (const std::string& axis : mesh.names()) {
    if (mesh.size(axis) == 1) continue;
    const Mesh group = mesh.slice({axis}, rank).flatten({axis}, "g");
    groups.push_back({group.to_string(), ranks_along(group)});
  }
  return around_[mesh.hash()].emplace_back(mesh, std::move(groups)).second;
}

std::optional<Comm> Groups::find_hosted(const std::string& name) const {
  const std::scoped_lock lock(mutex_);
  const auto known = hosted_.find(name);
  return known == hosted_.end() ? std::nullopt : std::optional(known->second);
}

Comm Groups::keep_hosted(const std::string& name, Comm comm) {
  const std::scoped_lock lock(mutex_);
  check_open();
  return hosted_.try_emplace(name, std::move(comm)).first->second;
}

std::vector<Groups::SlotPtr> Groups::unused() {
  constexpr std::uint64_t kRecent = 8;  // groups that were asked for since, before one is given up
  constexpr std::size_t kAtATime = 8;   // each costs a round trip to the store
  std::vector<Entry*> found;
  for (auto& [name, entry] : by_name_) {
    if (entry.slot.use_count() == 1 && made_ - entry.asked >= kRecent) found.push_back(&entry);
  }
  std::sort(found.begin(), found.end(),
            [](const Entry* a, const Entry* b) { return a->asked < b->asked; });
  std::vector<SlotPtr> out;
  for (std::size_t i = 0; i < std::min(found.size(), kAtATime); ++i) {
    found[i]->asked = made_ - kRecent;  // next time the others come first
    out.push_back(found[i]->slot);
  }
  return out;
}

void Groups::give_up_unused() {
  std::vector<SlotPtr> slots;
  {
    const std::scoped_lock lock(mutex_);
    slots = unused();
  }
  for (SlotPtr& slot : slots) {
    try {
      if (!slot->give_up()) continue;
    } catch (const std::exception&) {
      return;  // the store is gone, which the next to need it will say
    }
    const std::scoped_lock lock(mutex_);
    const auto entry = by_name_.find(slot->name());
    if (entry != by_name_.end() && slot.use_count() == 2) by_name_.erase(entry);
  }
}

bool Groups::close() {
  std::vector<Entry> entries;
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(closed_, true)) return false;
    for (auto& [name, entry] : by_name_) entries.push_back(entry);
    by_name_.clear();
    hosted_.clear();
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.made > b.made; });
  if (guard_) guard_->close("its world was closed");
  for (const Entry& entry : entries) entry.slot->close();
  return true;
}

bool Groups::closed() const {
  const std::scoped_lock lock(mutex_);
  return closed_;
}

}  // namespace intarsia
