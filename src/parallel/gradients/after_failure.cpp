#include "parallel/gradients/after_failure.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

constexpr std::string_view kWhere = "backward";
constexpr std::chrono::milliseconds kLongest = std::chrono::minutes(1);
constexpr std::chrono::milliseconds kPause{10};

/// How often the ranks of each mesh met.
class Meetings final : public World::Extension {
 public:
  static Meetings& of(World& world) {
    return static_cast<Meetings&>(world.extension(
        [](World&) -> std::unique_ptr<World::Extension> { return std::make_unique<Meetings>(); }));
  }
  int next(const std::string& mesh) {
    const std::scoped_lock lock(mutex_);
    return count_[mesh]++;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> count_;
};

std::string text_of(const Progress& p) {
  return concat(p.gathers, " gathers begun, ", p.reductions, " reductions begun and ", p.finished,
                " ended");
}

[[noreturn]] void refuse_absent(const std::vector<std::int64_t>& absent, std::int64_t rank) {
  fail<WorldError>(kWhere, "that of rank ", rank, " ended with an error, but rank ",
                   join(absent, ", "),
                   " did not come to go on together: where it did not fail, it waits for this one. "
                   "The ranks are out of step; begin anew on all of them");
}

}  // namespace

void meet_after_failure(World& world, const Mesh& mesh, const Progress& progress) {
  const auto& store = world.store();
  if (!store) fail<WorldError>(kWhere, "the world is closed; close it after the last step");
  if (mesh.size() == 1) return;
  const std::string mesh_text = concat(mesh);
  const std::string begin =
      concat("intarsia/failed/", mesh_text, '/', Meetings::of(world).next(mesh_text), '/');
  const std::string mine = text_of(progress);
  store->set(concat(begin, world.rank()), std::vector<std::uint8_t>(mine.begin(), mine.end()));

  std::vector<std::int64_t> absent;
  for (std::int64_t r = 0; r <= mesh.highest(); ++r) {
    if (mesh.contains(r)) absent.push_back(r);
  }
  const auto end = std::chrono::steady_clock::now() + std::min(kLongest, world.timeout());
  while (true) {
    std::erase_if(absent, [&](std::int64_t r) {
      const std::string key = concat(begin, r);
      if (!store->check({key})) return false;
      const std::vector<std::uint8_t> bytes = store->get(key);
      const std::string theirs(bytes.begin(), bytes.end());
      if (theirs != mine) {
        fail<WorldError>(kWhere, "it ended with an error at different places: rank ", world.rank(),
                         " has ", mine, ", rank ", r, " has ", theirs,
                         ". The ranks are out of step; begin anew on all of them");
      }
      return true;
    });
    if (absent.empty()) return;
    if (std::chrono::steady_clock::now() > end) refuse_absent(absent, world.rank());
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace intarsia
