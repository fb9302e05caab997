#include "world/session/live_worlds.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "error_text.h"
#include "intarsia/world.h"
#include "world/fork.h"

namespace intarsia {
namespace {

using testing::in_fork;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr int kClosed = 7;
constexpr int kLeftOpen = 5;

/// A world that ends its process when it is closed.
std::shared_ptr<World> ends_its_process() {
  return World::assemble({.on_close = [] { ::_exit(kClosed); }});
}

TEST(LiveWorlds, AStoreIsMadeOnceForEachKey) {
  int made = 0;
  const auto make = [&]() -> StorePtr { return ++made, c10::make_intrusive<c10d::HashStore>(); };
  LiveWorlds worlds;
  const StorePtr first = worlds.store("here", make);
  EXPECT_EQ(worlds.store("here", make), first);
  EXPECT_NE(worlds.store("there", make), first);
  EXPECT_EQ(made, 2);
}

TEST(LiveWorlds, AStoreThatCouldNotBeMadeIsTriedAgain) {
  LiveWorlds worlds;
  testing::expect_error<std::runtime_error>(
      [&] { worlds.store("here", []() -> StorePtr { throw std::runtime_error("nobody"); }); },
      {"nobody"});
  const StorePtr made = c10::make_intrusive<c10d::HashStore>();
  EXPECT_EQ(worlds.store("here", [&] { return made; }), made);
}

// The making of one rank's store may wait for another rank of this process.
TEST(LiveWorlds, AStoreIsMadeWhileOthersAre) {
  LiveWorlds worlds;
  const auto make = []() -> StorePtr { return c10::make_intrusive<c10d::HashStore>(); };
  StorePtr inner;
  const StorePtr outer = worlds.store("a", [&] {
    inner = worlds.store("b", make);
    return make();
  });
  EXPECT_EQ(worlds.store("b", make), inner);
  EXPECT_EQ(worlds.store("a", make), outer);
}

TEST(LiveWorlds, CountsWhatWasAskedBefore) {
  LiveWorlds worlds;
  EXPECT_EQ(worlds.count("here"), 0);
  EXPECT_EQ(worlds.count("here"), 1);
  EXPECT_EQ(worlds.count("there"), 0);
  EXPECT_EQ(worlds.count("here"), 2);
}

TEST(LiveWorlds, TheProcessHasOneOfThem) {
  EXPECT_EQ(&LiveWorlds::instance(), &LiveWorlds::instance());
}

TEST(LiveWorlds, AnExitClosesThoseThatAreOpen) {
  EXPECT_EQ(in_fork([] {
              std::atexit([] { ::_exit(kLeftOpen); });  // runs last
              const auto world = ends_its_process();
              std::exit(0);
              return 0;
            }),
            kClosed);
}

TEST(LiveWorlds, AnExitLeavesThoseAloneThatWereRemoved) {
  EXPECT_EQ(in_fork([] {
              std::atexit([] { ::_exit(kLeftOpen); });
              const auto world = ends_its_process();
              LiveWorlds::instance().remove(world.get());
              std::exit(0);
              return 0;
            }),
            kLeftOpen);
}

TEST(LiveWorlds, AForkBeginsWithNone) {
  const std::string key = "LiveWorlds.AForkBeginsWithNone";
  LiveWorlds* const ours = &LiveWorlds::instance();
  const int before = ours->count(key);
  EXPECT_EQ(in_fork([&] {
              const bool another = &LiveWorlds::instance() != ours;
              return another && LiveWorlds::instance().count(key) == 0 ? 1 : 0;
            }),
            1);
  EXPECT_EQ(&LiveWorlds::instance(), ours);
  EXPECT_EQ(ours->count(key), before + 1);
}

}  // namespace
}  // namespace intarsia
