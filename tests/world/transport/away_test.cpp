#include "world/transport/away.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "intarsia/waiting.h"

namespace intarsia {
namespace {

std::string g_log;
char g_kept[2];  // what is left behind has an address
int g_left = 0;

void* leave() {
  g_log += "leave" + std::to_string(g_left) + ' ';
  return &g_kept[g_left++];
}

void come_back(void* left) {
  g_log +=
      left == nullptr ? "back " : "back" + std::to_string(static_cast<char*>(left) - g_kept) + ' ';
}

class AwayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    g_log.clear();
    g_left = 0;
  }
  void TearDown() override { set_around_waits({}); }
};

TEST_F(AwayTest, ComesBackWithWhatItLeft) {
  set_around_waits({leave, come_back});
  {
    const Away away;
    EXPECT_EQ(g_log, "leave0 ");
  }
  EXPECT_EQ(g_log, "leave0 back0 ");
}

TEST_F(AwayTest, EachComesBackWithItsOwn) {
  set_around_waits({leave, come_back});
  std::optional<Away> first;
  std::optional<Away> second;
  first.emplace();
  second.emplace();
  first.reset();
  second.reset();
  EXPECT_EQ(g_log, "leave0 leave1 back0 back1 ");
}

TEST_F(AwayTest, ComesBackWhenAnExceptionPassesBy) {
  set_around_waits({leave, come_back});
  try {
    const Away away;
    throw 1;
  } catch (int) {
    g_log += "caught";
  }
  EXPECT_EQ(g_log, "leave0 back0 caught");
}

TEST_F(AwayTest, DoesNothingWithoutFunctions) {
  { const Away away; }
  set_around_waits({leave, nullptr});
  { const Away away; }
  EXPECT_EQ(g_log, "leave0 ");
  set_around_waits({nullptr, come_back});
  { const Away away; }
  EXPECT_EQ(g_log, "leave0 back ");
}

}  // namespace
}  // namespace intarsia
