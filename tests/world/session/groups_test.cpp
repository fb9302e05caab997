#include "world/session/groups.h"

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "world/fork.h"

namespace intarsia {
namespace {

using testing::expect_error;
using Names = std::vector<std::string>;

/// A backend that only says when it ends.
class Connection final : public c10d::Backend {
 public:
  Connection(int index, int size, std::string name, Names& ended)
      : c10d::Backend(index, size), name_(std::move(name)), ended_(ended) {}
  ~Connection() override { ended_.push_back(name_); }
  const std::string getBackendName() const override { return "test"; }

 private:
  std::string name_;
  Names& ended_;
};

/// A rank of a world of eight, with groups of which nothing but the names is true.
struct Rank {
  Names made;
  Names ended;
  std::vector<std::int64_t> members;  // of the group made last
  std::shared_ptr<World> world;
  Groups groups;
  BackendMaker make_backend;

  Rank(std::int64_t rank, const c10::intrusive_ptr<c10d::Store>& store)
      : world(World::assemble({.hosted = {rank}, .size = 8, .store = store})) {
    make_backend = [this](const std::string& name, int index,
                          const std::vector<std::int64_t>& ranks) -> Backend {
      made.push_back(name);
      members = ranks;
      return c10::make_intrusive<Connection>(index, static_cast<int>(ranks.size()), name, ended);
    };
  }
  ~Rank() { groups.close(); }

  Groups::SlotPtr find(const std::string& name, const char* mesh = "[g=2]") {
    return groups.find(name, [&] {
      const Mesh ranks = Mesh::parse(mesh);
      const auto at = ranks.coordinate_of(world->rank());
      return std::make_shared<GroupSlot>(*world, groups, make_backend, ranks, name,
                                         at ? (*at)[0] : 0);
    });
  }
  /// Asks for so many groups that nobody connects.
  void ask_for_others(int count) {
    for (int i = 0; i < count; ++i) find("other " + std::to_string(asked++));
  }
  int asked = 0;
};

c10::intrusive_ptr<c10d::Store> new_store() { return c10::make_intrusive<c10d::HashStore>(); }

TEST(Groups, AreConnectedOnFirstUseAndOnce) {
  Rank rank(3, new_store());
  const auto slot = rank.find("odd ones", "[g=3:2]+1");
  EXPECT_EQ(rank.made, Names{});
  const auto wire = slot->connected();
  EXPECT_EQ(rank.members, (std::vector<std::int64_t>{1, 3, 5}));
  EXPECT_EQ(slot->connected(), wire);
  EXPECT_EQ(rank.find("odd ones"), slot);
  EXPECT_NE(rank.find("more"), slot);
  EXPECT_EQ(rank.made, Names{"odd ones"});
  EXPECT_EQ(rank.world->ledger().group_name(slot->ledger_group()), "odd ones");
}

TEST(Groups, AreClosedTheLastMadeFirst) {
  Rank rank(0, new_store());
  for (const char* name : {"b", "c", "a"}) rank.find(name)->connected();
  const auto kept = rank.find("b");
  EXPECT_TRUE(rank.groups.close());
  EXPECT_EQ(rank.ended, (Names{"a", "c", "b"}));
  EXPECT_FALSE(rank.groups.close());
  EXPECT_TRUE(rank.groups.closed());
  expect_error<WorldError>([&] { kept->connected(); },
                           {"[World] group b was used after its world was closed"});
  expect_error<WorldError>([&] { rank.find("d"); }, {"[World] the world is closed"});
}

TEST(Groups, AGroupThatCannotBeMadeNamesItsRank) {
  Rank rank(5, new_store());
  rank.make_backend = [](const std::string&, int, const std::vector<std::int64_t>&) -> Backend {
    throw std::runtime_error("no route to host");
  };
  EXPECT_FALSE(rank.groups.failed()->load());
  expect_error<WorldError>([&] { rank.find("odd ones", "[g=3:2]+1")->connected(); },
                           {"[World] group odd ones could not be made by rank 5 (all of its 3 "
                            "members must use it): no route to host"});
  EXPECT_TRUE(rank.groups.failed()->load());
  rank.make_backend = [](const std::string&, int, const std::vector<std::int64_t>&) -> Backend {
    throw UnsupportedError("[World] no such backend");
  };
  expect_error<UnsupportedError>([&] { rank.find("odd ones")->connected(); }, {"no such backend"});
}

TEST(Groups, AreGivenUpWhenEightOthersWereAskedForSince) {
  const auto store = new_store();
  Rank a(0, store);
  Rank b(1, store);
  a.find("g")->connected();
  b.find("g")->connected();
  a.ask_for_others(7);
  b.ask_for_others(8);
  a.groups.give_up_unused();
  b.groups.give_up_unused();
  a.groups.give_up_unused();
  EXPECT_EQ(b.ended, Names{}) << "a needs it";
  a.ask_for_others(1);
  a.groups.give_up_unused();
  EXPECT_EQ(a.ended, Names{"g"}) << "the last to give it up closes at once";
  EXPECT_EQ(b.ended, Names{});
  b.groups.give_up_unused();
  EXPECT_EQ(b.ended, Names{"g"});
  a.find("g")->connected();
  EXPECT_EQ(a.made, (Names{"g", "g #1"})) << "it is another now";
}

TEST(Groups, OneThatWasGivenUpIsTakenBack) {
  const auto store = new_store();
  Rank a(0, store);
  Rank b(1, store);
  const Wire* before = a.find("g")->connected().get();
  b.find("g")->connected();
  a.ask_for_others(8);
  a.groups.give_up_unused();
  EXPECT_EQ(a.find("g")->connected().get(), before);
  b.ask_for_others(8);
  b.groups.give_up_unused();
  EXPECT_EQ(b.ended, Names{}) << "a needs it again";
  EXPECT_EQ(a.made, Names{"g"});
}

TEST(Groups, OneThatAllOthersGaveUpIsMadeAnew) {
  const auto store = new_store();
  Rank a(0, store);
  Rank b(1, store);
  a.find("g")->connected();
  b.find("g")->connected();
  for (Rank* rank : {&a, &b}) {
    rank->ask_for_others(8);
    rank->groups.give_up_unused();
  }
  ASSERT_EQ(b.ended, Names{"g"});
  a.find("g")->connected();  // it has not looked since
  EXPECT_EQ(a.ended, Names{"g"});
  EXPECT_EQ(a.made, (Names{"g", "g #1"}));
}

TEST(Groups, AHandleKeepsAGroup) {
  Rank rank(0, new_store());
  const auto handle = rank.find("handle", "[g=1]");
  handle->connected();
  rank.find("dropped", "[g=1]")->connected();
  rank.ask_for_others(8);
  for (int i = 0; i < 3; ++i) rank.groups.give_up_unused();
  EXPECT_EQ(rank.ended, Names{"dropped"});
}

TEST(Groups, ABackendThatSomeoneElseMadeIsNeverGivenUp) {
  Rank rank(0, new_store());
  rank.find("adopted", "[g=1]")->use(rank.make_backend("theirs", 0, {0}));
  rank.ask_for_others(8);
  rank.groups.give_up_unused();
  EXPECT_EQ(rank.ended, Names{});
  rank.find("adopted")->connected();
  EXPECT_EQ(rank.made, Names{"theirs"});
}

TEST(Groups, EightAreGivenUpAtATimeTheLongestUnusedFirst) {
  Rank rank(0, new_store());
  std::vector<Groups::SlotPtr> handles;
  for (int i = 0; i < 10; ++i) {
    handles.push_back(rank.find("g" + std::to_string(i), "[g=1]"));
    handles.back()->connected();
  }
  rank.find("g0");  // again
  handles.clear();
  rank.ask_for_others(8);
  rank.groups.give_up_unused();
  EXPECT_EQ(rank.ended, (Names{"g1", "g2", "g3", "g4", "g5", "g6", "g7", "g8"}));
  rank.groups.give_up_unused();
  EXPECT_EQ(rank.ended.size(), 10U);
}

TEST(Groups, ConnectingOneGivesUpOthers) {
  Rank rank(0, new_store());
  for (int i = 0; i < 10; ++i) rank.find("g" + std::to_string(i), "[g=1]")->connected();
  EXPECT_EQ(rank.ended, (Names{"g0", "g1"}));
}

TEST(Groups, AForkLeavesThoseOfItsParentAlone) {
  Rank rank(0, new_store());
  const auto slot = rank.find("g");
  slot->connected();
  EXPECT_FALSE(rank.groups.inherited());
  EXPECT_EQ(testing::in_fork([&] {
              const std::string text = testing::message_of<WorldError>([&] { slot->connected(); });
              slot->close();
              const bool untouched = rank.groups.inherited() && rank.ended.empty();
              return untouched && text.starts_with("[World] group g belongs to the process");
            }),
            1);
}

TEST(Groups, TheFirstOfHostedGroupsIsKept) {
  const Lockstep lockstep("[a=2,b=3]");
  Groups groups;
  EXPECT_FALSE(groups.find_hosted("x").has_value());
  groups.keep_hosted("x", lockstep.world().along(lockstep.mesh(), {"a"}));
  EXPECT_EQ(groups.find_hosted("x")->size(), 2);
  EXPECT_EQ(groups.keep_hosted("x", lockstep.world().along(lockstep.mesh(), {"b"})).size(), 2);
  groups.close();
  EXPECT_FALSE(groups.find_hosted("x").has_value());
  expect_error<WorldError>([&] { groups.keep_hosted("x", lockstep.world().everyone()); },
                           {"the world is closed"});
}

}  // namespace
}  // namespace intarsia
