#include "world/collectives/arguments.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/lockstep.h"
#include "intarsia/simulate.h"

namespace intarsia {
namespace {

using testing::expect_error;
using Tensors = std::vector<at::Tensor>;

/// One member of a group of three here: rank 5, at place 1 of ranks 3, 5 and 7.
struct OneOfThree {
  std::shared_ptr<World> world = simulate({.size = 8, .rank = 5});
  Comm comm = world->along(Mesh::parse("[x=3:2]+3"), {"x"});
};

/// Four members in two groups of two, (0, 1) and (2, 3).
struct AllOfTwice {
  Lockstep lockstep{"[dp=2,tp=2]"};
  Comm comm = lockstep.world().along(lockstep.mesh(), {"tp"});
};

void refuse(const std::function<void()>& call, std::initializer_list<std::string> parts) {
  expect_error<ValueError>(call, parts);
}

std::vector<std::int64_t> list(std::span<const std::int64_t> of) { return {of.begin(), of.end()}; }

TEST(Arguments, EachMemberHereBringsADenseTensor) {
  const OneOfThree one;
  const AllOfTwice all;
  const at::Tensor x = at::ones({2, 2});
  check_pieces("op", one.comm, Tensors{x});
  check_pieces("op", one.comm, Tensors{x.t()});
  check_pieces("op", all.comm, Tensors{x, x, x, x});
  refuse([&] { check_pieces("op", one.comm, Tensors{}); },
         {"[op] group [g=3:2]+3 has 1 members in this process, but 0 tensors were given"});
  refuse([&] { check_pieces("op", all.comm, Tensors{x, x}); }, {"4 members", "2 tensors"});
  refuse(
      [&] {
        check_pieces("op", all.comm, Tensors{x, x, at::Tensor(), x});
      },
      {"[op] an undefined tensor was given"});
  expect_error<UnsupportedError>([&] { check_pieces("op", one.comm, Tensors{x.to_sparse()}); },
                                 {"[op] the tensor is sparse; make it dense first"});
  expect_error<UnsupportedError>([&] { check_pieces("op", one.comm, Tensors{x.to_sparse_csr()}); },
                                 {"[op] the tensor is not strided; make it dense first"});
}

TEST(Arguments, DimensionsCountFromTheFront) {
  const at::Tensor x = at::ones({2, 3});
  EXPECT_EQ(checked_dim("op", 1, x), 1);
  EXPECT_EQ(checked_dim("op", -2, x), 0);
  refuse([&] { checked_dim("op", 2, x); }, {"[op] dimension 2", "2 dimensions"});
  refuse([&] { checked_dim("op", 0, at::ones({})); }, {"[op] dimension 0"});
}

TEST(Arguments, LengthsHoldForAllMembersOrForEach) {
  const AllOfTwice all;
  for (const std::size_t member : {0U, 3U}) {
    EXPECT_EQ(list(of_member(all.comm, {4, 5}, member)), (Counts{4, 5}));
  }
  const Counts each{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(list(of_member(all.comm, each, 0)), (Counts{1, 2}));
  EXPECT_EQ(list(of_member(all.comm, each, 2)), (Counts{5, 6}));
}

TEST(Arguments, LengthsLeftOutAreEqual) {
  const OneOfThree one;
  EXPECT_EQ(checked_lengths("op", one.comm, {}, 4), (Counts{4, 4, 4}));
  EXPECT_EQ(checked_lengths("op", one.comm, Counts{0, 2, 9}, 4), (Counts{0, 2, 9}));
  refuse(
      [&] {
        checked_lengths("op", one.comm, Counts{1, 2}, 4);
      },
      {"[op] group [g=3:2]+3 has 3 ranks, but 2 lengths were given (1,2)"});
  refuse(
      [&] {
        checked_lengths("op", one.comm, Counts{1, -2, 1}, 4);
      },
      {"[op] the lengths (1,-2,1) have a negative one"});
  const AllOfTwice all;
  EXPECT_EQ(checked_lengths("op", all.comm, Counts(8, 1), 4).size(), 8U);
  refuse([&] { checked_lengths("op", all.comm, Counts(4, 1), 4); }, {"2 ranks", "4 lengths"});
}

TEST(Arguments, EqualPartsMustDivideEvenly) {
  const OneOfThree one;
  EXPECT_EQ(equal_part("op", one.comm, 12, false), 4);
  EXPECT_EQ(equal_part("op", one.comm, 0, false), 0);
  refuse([&] { equal_part("op", one.comm, 7, false); },
         {"[op] length 7 does not divide into 3 equal parts; give the lengths"});
  equal_part("op", one.comm, 7, true);  // the given ones hold
}

TEST(Arguments, PartsMustAddUpForEachMember) {
  const AllOfTwice all;
  const Tensors pieces{at::ones({3, 2}), at::ones({3, 2}), at::ones({5, 2}), at::ones({4, 2})};
  check_total("op", all.comm, {1, 2, 3, 0, 2, 3, 0, 4}, pieces, 0);
  check_total("op", all.comm, {2, 0}, pieces, 1);
  refuse(
      [&] {
        check_total("op", all.comm, {1, 2, 3, 0, 2, 3, 1, 4}, pieces, 0);
      },
      {"[op] the lengths (1,4) add up to 5, but the tensor is 4 long"});
  refuse([&] { check_total("op", all.comm, {1, 2}, pieces, 0); }, {"add up to 3", "5 long"});
}

TEST(Arguments, APieceIsAsLongAsItsPlaceSays) {
  const OneOfThree one;
  check_own_lengths("op", one.comm, Tensors{at::ones({2, 7})}, 1, {1, 7, 2});
  refuse(
      [&] {
        check_own_lengths("op", one.comm, Tensors{at::ones({2, 7})}, 1, {7, 1, 2});
      },
      {"[op] the piece of rank 5 is 7 long in dimension 1, but the lengths (7,1,2) say 1"});
  const AllOfTwice all;
  const Tensors pieces{at::ones({1}), at::ones({2}), at::ones({3}), at::ones({4})};
  check_own_lengths("op", all.comm, pieces, 0, {1, 2, 1, 2, 3, 4, 3, 4});
  refuse(
      [&] {
        check_own_lengths("op", all.comm, pieces, 0, {1, 2});
      },
      {"the piece of rank 2 is 3 long in dimension 0, but the lengths (1,2) say 1"});
}

}  // namespace
}  // namespace intarsia
