#include "world/collectives/wire.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/waiting.h"

namespace intarsia {
namespace {

using std::chrono::milliseconds;
using testing::expect_error;

const auto kHere = std::source_location::current();
const Call kCall{.tensor = "w"};

class TestWork final : public c10d::Work {
 public:
  explicit TestWork(std::string error) : error_(std::move(error)) {}
  bool wait(std::chrono::milliseconds) override {
    if (!error_.empty()) throw std::runtime_error(error_);
    return true;
  }

 private:
  std::string error_;
};

/// What a backend was asked for, and what shall go wrong.
struct Asked {
  std::vector<std::string> calls;
  std::string fails_to_start;
  std::string fails_to_end;
  bool ended = false;
};

/// The one of place 1 among three, which writes down what it is asked for.
class TestBackend final : public c10d::Backend {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;

  TestBackend(Asked& asked, std::string name)
      : c10d::Backend(1, 3), asked_(asked), name_(std::move(name)) {}
  ~TestBackend() override { asked_.ended = true; }

  const std::string getBackendName() const override { return name_; }
  WorkPtr _allgather_base(at::Tensor& out, at::Tensor& in,
                          const c10d::AllgatherOptions& o) override {
    return note("all_gather ", in.numel(), " to ", out.numel(), " in ", o.timeout.count());
  }
  WorkPtr allreduce(Tensors& t, const c10d::AllreduceOptions& o) override {
    return note("all_reduce ", t[0].numel(), " by ", static_cast<int>(o.reduceOp.op_), " in ",
                o.timeout.count());
  }
  WorkPtr _reduce_scatter_base(at::Tensor& out, at::Tensor& in,
                               const c10d::ReduceScatterOptions& o) override {
    return note("reduce_scatter ", in.numel(), " to ", out.numel(), " by ",
                static_cast<int>(o.reduceOp.op_), " in ", o.timeout.count());
  }
  WorkPtr alltoall_base(at::Tensor&, at::Tensor&, std::vector<std::int64_t>& out_counts,
                        std::vector<std::int64_t>& in_counts,
                        const c10d::AllToAllOptions& o) override {
    return note("all_to_all ", join(in_counts), " to ", join(out_counts), " in ",
                o.timeout.count());
  }
  WorkPtr broadcast(Tensors& t, const c10d::BroadcastOptions& o) override {
    return note("broadcast ", t[0].numel(), " from ", o.rootRank, " in ", o.timeout.count());
  }
  WorkPtr send(Tensors& t, int to, int) override { return note("send ", t[0].numel(), " to ", to); }
  WorkPtr recv(Tensors& t, int from, int) override {
    return note("recv ", t[0].numel(), " from ", from);
  }
  WorkPtr barrier(const c10d::BarrierOptions& o) override {
    return note("barrier in ", o.timeout.count());
  }

 private:
  template <class... Parts>
  WorkPtr note(const Parts&... parts) {
    if (!asked_.fails_to_start.empty()) throw std::runtime_error(asked_.fails_to_start);
    asked_.calls.push_back(concat(parts...));
    return c10::make_intrusive<TestWork>(asked_.fails_to_end);
  }

  Asked& asked_;
  std::string name_;
};

/// The wire of rank 5, at place 1 of a group.
struct OfRank5 {
  Asked asked;
  std::shared_ptr<World> world =
      World::assemble({.hosted = {5}, .size = 8, .timeout = milliseconds(1234)});
  std::shared_ptr<int> group = std::make_shared<int>();
  std::shared_ptr<std::atomic<bool>> failed = std::make_shared<std::atomic<bool>>(false);
  std::optional<Wire> wire;

  explicit OfRank5(const std::string& backend = "test") {
    wire.emplace(c10::make_intrusive<TestBackend>(asked, backend), *world,
                 WireGroup{"[g=3]+4", world->ledger().add_group("[g=3]+4"), failed, group});
  }
  /// Calls in the ledger: kind, dtype, bytes.
  std::vector<std::string> recorded() const {
    std::vector<std::string> out;
    for (const LedgerEntry& e : world->ledger().entries()) {
      out.push_back(concat(to_text(e.kind), ' ', c10::toString(e.dtype), ' ', e.bytes));
    }
    return out;
  }
};

at::Tensor floats(std::int64_t count) { return at::zeros({count}); }
CallSite site() { return {kCall, kHere}; }

TEST(Wire, AsksTheBackendAndRecordsIt) {
  OfRank5 of;
  of.wire->all_gather(floats(6), floats(2), at::kFloat, site());
  of.wire->reduce_scatter(floats(2), floats(6), Reduction::sum, at::kFloat, site());
  of.wire->all_to_all(floats(4), floats(3), {0, 1, 3}, {1, 1, 1}, at::kFloat, site());
  of.wire->broadcast(floats(5), 2, at::kBFloat16, site());
  of.wire->barrier(site());
  EXPECT_EQ(of.asked.calls, (std::vector<std::string>{
                                "all_gather 2 to 6 in 1234", "reduce_scatter 6 to 2 by 0 in 1234",
                                "all_to_all 1,1,1 to 0,1,3 in 1234", "broadcast 5 from 2 in 1234",
                                "barrier in 1234"}));
  EXPECT_EQ(of.recorded(), (std::vector<std::string>{
                               "all_gather Float 8", "reduce_scatter Float 24",
                               "all_to_all Float 12", "broadcast BFloat16 20", "barrier Byte 0"}));
  EXPECT_EQ(of.world->ledger().entries()[0].tensor, "w");
}

TEST(Wire, AsksForTheReductionsOfC10d) {
  using Op = c10d::ReduceOp;
  using enum Reduction;
  const std::vector<std::pair<Reduction, Op::RedOpType>> rows{
      {sum, Op::SUM},         {avg, Op::AVG},      {min, Op::MIN},    {max, Op::MAX},
      {product, Op::PRODUCT}, {bit_and, Op::BAND}, {bit_or, Op::BOR}, {bit_xor, Op::BXOR}};
  OfRank5 of;
  for (const auto& [how, op] : rows) {
    of.wire->all_reduce(floats(1), how, at::kFloat, site());
    EXPECT_EQ(of.asked.calls.back(), concat("all_reduce 1 by ", static_cast<int>(op), " in 1234"));
  }
  expect_error<UnsupportedError>([&] { of.wire->all_reduce(floats(1), norm, at::kFloat, site()); },
                                 {"[reduce] no backend reduces norms by itself"});
}

TEST(Wire, PermutesByMessages) {
  OfRank5 of;
  Works works = of.wire->permute(floats(2), floats(3), {1, 2, 0}, at::kFloat, site());
  EXPECT_EQ(works.list.size(), 2U);
  EXPECT_EQ(of.asked.calls, (std::vector<std::string>{"recv 2 from 0", "send 3 to 2"}));
  of.wire->permute(floats(2), floats(3), {1, 0, 2}, at::kFloat, site());
  EXPECT_EQ(of.asked.calls[2] + ", " + of.asked.calls[3], "recv 2 from 0, send 3 to 0");
  works = of.wire->permute(floats(0), floats(3), {2, 0, 1}, at::kFloat, site());
  EXPECT_EQ(of.asked.calls.back(), "send 3 to 0");
  EXPECT_EQ(works.list.size(), 1U) << "nothing is no message";
  const at::Tensor out = floats(2);
  works = of.wire->permute(out, at::ones({2}), {2, 1, 0}, at::kFloat, site());
  EXPECT_TRUE(works.list.empty());
  EXPECT_TRUE(at::equal(out, at::ones({2}))) << "it stays here";
  EXPECT_EQ(of.recorded(),
            (std::vector<std::string>{"recv Float 8", "send Float 12", "recv Float 8",
                                      "send Float 12", "send Float 12"}));
  EXPECT_EQ(of.world->ledger().group_collectives(0), 4U) << "on every rank, whatever it sends";
}

TEST(Wire, ACallThatCannotStartNamesRankAndGroup) {
  OfRank5 of;
  of.asked.fails_to_start = "no route to host";
  expect_error<WorldError>(
      [&] { of.wire->all_gather(floats(6), floats(2), at::kFloat, site()); },
      {"[all_gather] rank 1 of group [g=3]+4 (test) could not start: no route to host"});
  EXPECT_TRUE(of.failed->load());
  EXPECT_EQ(of.recorded(), std::vector<std::string>{"all_gather Float 8"}) << "before it is made";
}

TEST(Wire, ACallThatDoesNotEndQuotesTheLastOnes) {
  OfRank5 of;
  for (int i = 0; i < 9; ++i) of.wire->barrier(site());
  wait_for(of.wire->barrier(site()), "barrier");
  EXPECT_FALSE(of.failed->load());
  of.asked.fails_to_end = "a rank is gone";
  const Works works = of.wire->all_gather(floats(6), floats(2), at::kFloat, site());
  expect_error<WorldError>([&] { wait_for(works, "gathering"); },
                           {"[gathering] over group [g=3]+4 did not finish: a rank is gone\n"
                            "the last calls of this rank:\n#3 barrier over [g=3]+4",
                            "#10 all_gather over [g=3]+4 Float 8 B tensor w at "});
  EXPECT_TRUE(of.failed->load());
}

TEST(Wire, CallsUnderWayKeepTheirGroup) {
  OfRank5 of;
  EXPECT_EQ(of.group.use_count(), 1);
  {
    const Works one = of.wire->barrier(site());
    const Works other = of.wire->permute(floats(1), floats(1), {1, 2, 0}, at::kFloat, site());
    EXPECT_EQ(of.group.use_count(), 3);
  }
  EXPECT_EQ(of.group.use_count(), 1);
}

TEST(Wire, ItsEndEndsTheBackendBeforeAbandonedBuffers) {
  OfRank5 of;
  const Works works = of.wire->barrier(site());
  bool backend_ended_first = false;
  works.context->abandoned.emplace_back(nullptr,
                                        [&](void*) { backend_ended_first = of.asked.ended; });
  of.wire.reset();
  EXPECT_TRUE(backend_ended_first);
  EXPECT_TRUE(works.context->abandoned.empty());
}

TEST(Wire, LeavesToABackendWhatItDoesWell) {
  const OfRank5 of_test;
  const OfRank5 of_shm("shm");
  EXPECT_FALSE(of_test.wire->reductions().reduces(at::kHalf, Reduction::sum));
  EXPECT_TRUE(of_shm.wire->reductions().reduces(at::kHalf, Reduction::sum));
  EXPECT_TRUE(of_shm.wire->reductions().as_here);
}

int g_away = 0;

TEST(Wire, CallsAndWaitsAreMadeAway) {
  g_away = 0;
  set_around_waits({[]() -> void* { return ++g_away, nullptr; }, nullptr});
  OfRank5 of;
  const Works works = of.wire->barrier(site());
  EXPECT_EQ(g_away, 1);
  wait_for(works, "barrier");
  EXPECT_EQ(g_away, 2);
  of.wire.reset();
  EXPECT_EQ(g_away, 3);
  set_around_waits({});
}

}  // namespace
}  // namespace intarsia
