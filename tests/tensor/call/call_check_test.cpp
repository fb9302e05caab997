#include "tensor/call/call_check.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"
#include "tensor/call/frame.h"

namespace intarsia {
namespace {

at::Tensor rows(World& world) { return ones({4, 3}, Layout::parse("[x=2] S(0)"), world); }

TEST(CallCheck, SeesTheCallsOfItsThreadWhileItLives) {
  const auto world = lockstep_world(2);
  const at::Tensor x = rows(*world);
  std::vector<std::string> seen;
  {
    const CallCheck outer([&](const Frame& call) { seen.push_back("outer " + call.info.name); });
    const at::Tensor y = x + 1;
    {
      const CallCheck inner([&](const Frame& call) { seen.push_back("inner " + call.info.name); });
      const at::Tensor z = x * 2;
    }
    std::thread([&] { const at::Tensor z = x.relu(); }).join();
    const at::Tensor plain = at::ones({2}) + 1;
    const at::Tensor z = x.relu();
  }
  const at::Tensor y = x - 1;
  EXPECT_EQ(seen, (std::vector<std::string>{"outer aten::add.Scalar", "inner aten::mul.Scalar",
                                            "outer aten::relu"}));
}

TEST(CallCheck, MayRefuse) {
  const auto world = lockstep_world(2);
  const at::Tensor x = rows(*world);
  {
    const CallCheck none([](const Frame& call) { call.refuse("not here", "go elsewhere"); });
    EXPECT_THROW(x.relu(), c10::ValueError);
  }
  EXPECT_EQ(full(x.relu()).sum().item<double>(), 12);
}

}  // namespace
}  // namespace intarsia
