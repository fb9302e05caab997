#include "world/transport/in_process_backend.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

using testing::expect_error;
using Tensors = std::vector<at::Tensor>;
using Lengths = std::vector<std::int64_t>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// The ranks of one group. No call waits for another, so that one thread can make those of all.
struct Group {
  InProcessOptions options;
  std::shared_ptr<Hub> hub;
  std::vector<c10::intrusive_ptr<InProcessBackend>> ranks;

  explicit Group(Lengths world_ranks, InProcessOptions o = {})
      : options(std::move(o)), hub(std::make_shared<Hub>("g", world_ranks)) {
    for (int i = 0; i < static_cast<int>(world_ranks.size()); ++i) {
      ranks.push_back(c10::make_intrusive<InProcessBackend>(hub, i, options));
    }
  }
  InProcessBackend& operator[](std::size_t i) { return *ranks[i]; }
};

at::Tensor ints(Lengths values) { return at::tensor(values, at::kLong); }

Lengths list(const at::Tensor& t) {
  const auto* data = t.const_data_ptr<std::int64_t>();
  return {data, data + t.numel()};
}

TEST(InProcessBackend, TheLastToComeComputesForAll) {
  Group g({0, 1});
  Tensors a{ints({1, 2})};
  Tensors b{ints({10, 20})};
  const WorkPtr first = g[0].allreduce(a, {});
  EXPECT_FALSE(first->isCompleted());
  EXPECT_EQ(list(a[0]), (Lengths{1, 2}));
  const WorkPtr second = g[1].allreduce(b, {});
  EXPECT_TRUE(first->isCompleted());
  EXPECT_TRUE(first->isSuccess());
  EXPECT_TRUE(second->wait());
  EXPECT_EQ(list(a[0]), (Lengths{11, 22}));
  EXPECT_EQ(list(b[0]), (Lengths{11, 22}));
}

TEST(InProcessBackend, ReducesByEveryReductionOfC10d) {
  using Op = c10d::ReduceOp;
  const std::vector<std::pair<Op::RedOpType, double>> rows{
      // 101 and 110
      {Op::SUM, 11}, {Op::AVG, 5.5}, {Op::PRODUCT, 30}, {Op::MIN, 5},
      {Op::MAX, 6},  {Op::BAND, 4},  {Op::BOR, 7},      {Op::BXOR, 3}};
  for (const auto& [op, want] : rows) {
    const auto type = op == Op::AVG ? at::kDouble : at::kLong;
    Group g({0, 1});
    c10d::ReduceOptions options;
    options.reduceOp = op;
    options.rootRank = 1;
    Tensors a{at::full({1}, 5, type)};
    Tensors b{at::full({1}, 6, type)};
    g[0].reduce(a, options);
    g[1].reduce(b, options)->wait();
    EXPECT_EQ(a[0].item<double>(), 5) << "only the root gets it";
    EXPECT_EQ(b[0].item<double>(), want);
  }
}

TEST(InProcessBackend, GathersAndScatters) {
  Group g({0, 1});
  Tensors in[2] = {{ints({1, 2})}, {ints({3, 4})}};
  std::vector<Tensors> lists[2];
  at::Tensor flat[2];
  for (std::size_t r = 0; r < 2; ++r) {
    lists[r] = {{at::zeros({2}, at::kLong), at::zeros({2}, at::kLong)}};
    flat[r] = at::zeros({4}, at::kLong);
    g[r].allgather(lists[r], in[r], {});
    g[r]._allgather_base(flat[r], in[r][0], {});
  }
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(list(lists[r][0][0]), (Lengths{1, 2}));
    EXPECT_EQ(list(lists[r][0][1]), (Lengths{3, 4}));
    EXPECT_EQ(list(flat[r]), (Lengths{1, 2, 3, 4}));
  }
  std::vector<Tensors> none;
  c10d::GatherOptions to_one;
  to_one.rootRank = 1;
  c10d::ScatterOptions from_one;
  from_one.rootRank = 1;
  std::vector<Tensors> gathered{{ints({0, 0}), ints({0, 0})}};
  g[0].gather(none, in[0], to_one);
  g[1].gather(gathered, in[1], to_one);
  EXPECT_EQ(list(gathered[0][0]), (Lengths{1, 2}));
  std::vector<Tensors> parts{{ints({7, 8}), ints({9, 10})}};
  g[0].scatter(in[0], none, from_one);
  g[1].scatter(in[1], parts, from_one);
  EXPECT_EQ(list(in[0][0]), (Lengths{7, 8}));
  EXPECT_EQ(list(in[1][0]), (Lengths{9, 10}));
}

TEST(InProcessBackend, EachRankGetsItsPart) {
  Group g({0, 1});
  at::Tensor in[2] = {ints({1, 2, 3, 4}), ints({10, 20, 30, 40})};
  at::Tensor sums[2] = {ints({0, 0}), ints({0, 0})};
  for (std::size_t r = 0; r < 2; ++r) g[r]._reduce_scatter_base(sums[r], in[r], {});
  EXPECT_EQ(list(sums[0]), (Lengths{11, 22}));
  EXPECT_EQ(list(sums[1]), (Lengths{33, 44}));
  // Rank 0 keeps one element and sends three; rank 1 sends nothing and keeps four.
  Lengths in_counts[2] = {{1, 3}, {0, 4}};
  Lengths out_counts[2] = {{1, 0}, {3, 4}};
  at::Tensor out[2] = {ints({0}), at::zeros({7}, at::kLong)};
  for (std::size_t r = 0; r < 2; ++r) {
    g[r].alltoall_base(out[r], in[r], out_counts[r], in_counts[r], {});
  }
  EXPECT_EQ(list(out[0]), (Lengths{1}));
  EXPECT_EQ(list(out[1]), (Lengths{2, 3, 4, 10, 20, 30, 40}));
}

TEST(InProcessBackend, MessagesArriveInOrderForEachTag) {
  Group g({0, 1, 2});
  Tensors sent[3] = {{ints({1})}, {ints({2})}, {ints({3})}};
  Tensors got[3] = {{ints({0})}, {ints({0})}, {ints({0})}};
  g[0].send(sent[0], 2, /*tag=*/5);
  g[0].send(sent[1], 2, /*tag=*/5);
  g[0].send(sent[2], 2, /*tag=*/6);
  g[2].recv(got[2], 0, 6);
  g[2].recv(got[0], 0, 5);
  const WorkPtr last = g[2].recv(got[1], 0, 5);
  EXPECT_TRUE(last->isCompleted());
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(list(got[i][0]), list(sent[i][0]));
}

TEST(InProcessBackend, DifferentCallsAndSizesAreNamed) {
  Group g({4, 9});
  Tensors a{at::ones({2})};
  Tensors b{at::ones({2}, at::kDouble)};
  const auto refused = [&](const WorkPtr& first, const WorkPtr& second,
                           std::initializer_list<std::string> parts) {
    expect_error<WorldError>([&] { first->wait(); }, parts);
    expect_error<WorldError>([&] { second->wait(); }, parts);
  };
  refused(g[0].allreduce(a, {}), g[1].barrier({}),
          {"[all_reduce] group g: rank 4 called all_reduce of Float by sum, root 0, but rank 9 "
           "called barrier of nothing, root 0"});
  refused(g[0].allreduce(a, {}), g[1].allreduce(b, {}), {"of Float by sum", "of Double by sum"});
  at::Tensor out = at::zeros({4});
  at::Tensor three = at::ones({3});
  refused(g[0]._allgather_base(out, a[0], {}), g[1]._allgather_base(out, three, {}),
          {"rank 1 of the group brought 3 elements, rank 0 brought 2"});
  Lengths two{2, 0};
  Lengths one{1, 1};
  refused(g[0].alltoall_base(a[0], a[0], two, two, {}),
          g[1].alltoall_base(a[0], a[0], one, one, {}),
          {"rank 1 of the group sends 1 elements to rank 0, which expects 0"});
}

TEST(InProcessBackend, WhoDidNotComeIsNamed) {
  Group g({4, 9, 11}, {.timeout = std::chrono::milliseconds(20)});
  g[1].barrier({});
  const WorkPtr work = g[0].barrier({});
  expect_error<WorldError>([&] { work->wait(); },
                           {"[barrier] group g waited 20 ms for rank 11, which did not come"});
  Tensors one{ints({1})};
  expect_error<WorldError>([&] { g[0].recv(one, 2, 0)->wait(std::chrono::milliseconds(10)); },
                           {"[recv] group g waited 10 ms for rank 11, which did not come"});
}

TEST(InProcessBackend, FaultsAreAskedForBeforeEveryCall) {
  std::vector<std::string> asked;
  InProcessOptions options;
  options.timeout = std::chrono::milliseconds(10);
  options.fault = [&](const FaultPoint& at) {
    asked.push_back(std::to_string(at.rank) + at.group + std::to_string(at.sequence) +
                    std::string(at.kind));
    return Fault{.drop = at.rank == 4 && at.sequence == 1,
                 .fail = at.sequence == 2 ? "the cable broke" : ""};
  };
  Group g({4, 9}, options);
  Tensors one{ints({1})};
  g[0].barrier({});
  g[1].barrier({})->wait();
  expect_error<WorldError>([&] { g[0].send(one, 1, 0)->wait(); }, {"dropped by the fault hook"});
  const WorkPtr under_way = g[1].barrier({});
  expect_error<WorldError>([&] { g[0].barrier({}); },
                           {"[barrier] rank 4 of group g failed: the cable broke"});
  expect_error<WorldError>([&] { under_way->wait(); }, {"rank 4 of group g failed"});
  EXPECT_EQ(asked, (std::vector<std::string>{"4g0barrier", "9g0barrier", "4g1send", "9g1barrier",
                                             "4g2barrier"}));
}

TEST(InProcessBackend, AnAbortEndsWhatIsOpenAndWhatComes) {
  Group g({0, 1});
  const WorkPtr open = g[0].barrier({});
  g.hub->abort("rank 1 is gone");
  g.hub->abort("nobody reads this");
  EXPECT_TRUE(open->isCompleted());
  EXPECT_FALSE(open->isSuccess());
  expect_error<WorldError>([&] { open->wait(); }, {"rank 1 is gone"});
  expect_error<WorldError>([&] { g[1].barrier({}); }, {"rank 1 is gone"});
}

}  // namespace
}  // namespace intarsia
