#include "intarsia/watch.h"

#include <c10/util/Exception.h>

#include <map>
#include <mutex>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/guard/guarded_backend.h"
#include "world/transport/backends.h"

namespace intarsia {
namespace {

constexpr std::chrono::milliseconds kMeeting = std::chrono::minutes(10);

/// The guard of all groups that are watched. When the process ends in order, so does the guard:
/// the others are not told that it died.
class Watched {
 public:
  static Watched& instance() {
    static Watched watched;
    return watched;
  }
  ~Watched() {
    if (guard_) guard_->close("its process ended");
  }
  Watched() = default;
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  /// Begins with a group of all ranks.
  void begin(c10d::ProcessGroup& all) {
    const auto store = all.getStore();
    if (!store) return;
    auto guard = Guard::make(c10::make_intrusive<c10d::PrefixStore>("watch", store), all.getRank(),
                             all.getSize(), kMeeting);
    const std::scoped_lock lock(mutex_);
    if (guard_) guard_->close("its default group was made anew");
    guard_ = std::move(guard);
    size_ = all.getSize();
    made_.clear();
  }

  /// Null where nothing is compared.
  std::shared_ptr<GuardedGroup> join(const WatchOptions& options) {
    const std::scoped_lock lock(mutex_);
    if (!guard_) return nullptr;
    std::vector<std::int64_t> ranks = options.ranks;
    for (std::int64_t r = 0; r < size_ && options.ranks.empty(); ++r) ranks.push_back(r);
    for (const std::int64_t rank : ranks) {
      if (rank >= 0 && rank < size_) continue;
      fail<ValueError>("watch", "group ", options.name, " has rank ", rank, " of a world of ",
                       size_, "; watch the group of all ranks first");
    }
    const std::string name = concat("'", options.name, "' of ranks ", intarsia::join(ranks, ", "));
    return guard_->join(name, std::move(ranks), made_[name]++);
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<Guard> guard_;
  std::int64_t size_ = 0;
  std::map<std::string, std::int64_t> made_;  // how many groups there were, by name
};

}  // namespace

bool watch(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const WatchOptions& options) {
  Watched& watched = Watched::instance();
  if (options.ranks.empty()) watched.begin(*group);
  c10::intrusive_ptr<c10d::Backend> inner;
  try {
    inner = group->getBackend(at::kCPU);
  } catch (const c10::Error&) {
    return false;  // it has none for the CPU
  }
  if (!waits_in_slices(inner->getBackendName())) return false;
  auto guarded = watched.join(options);
  if (!guarded) return false;
  // A type that it has no backend of: c10d would take that one.
  group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::UNDEFINED,
                    guarded_backend(std::move(inner), std::move(guarded)));
  return true;
}

bool watch(const std::string& group_name, const WatchOptions& options) {
  return watch(registered_group("watch", group_name), options);
}

}  // namespace intarsia
