#include "rules/windows.h"

#include <gtest/gtest.h>

#include "rules/asked.h"

namespace intarsia::rules {
namespace {

using testing::Asked;
using testing::Ints;
using testing::sized;
using testing::unset;

std::string text(const Window& w) {
  return std::to_string(w.dim) + ": stride " + std::to_string(w.stride) + " before " +
         std::to_string(w.before) + " after " + std::to_string(w.after) + " dilation " +
         std::to_string(w.dilation) + " taps " + std::to_string(w.taps);
}

std::vector<std::string> windows_of(const Asked& asked) {
  std::vector<std::string> out;
  for (const Window& w : windows(asked)) out.push_back(text(w));
  return out;
}

std::int64_t shift(const Ints& sizes, const Ints& shifts, const Ints& dims, std::size_t dim) {
  return shift_of(Asked("aten::roll", {sized(sizes), shifts, dims}), dim);
}

TEST(Windows, ARunOfResultsReadsARunOfElements) {
  const Window w{.stride = 2, .before = 1, .taps = 3};
  // Result 2 reads 3, 4, 5; result 4 reads 7, 8, 9.
  EXPECT_EQ(w.read({2, 5}), (Range{3, 10}));
  EXPECT_EQ(w.read({0, 1}), (Range{-1, 2}));
  EXPECT_EQ(w.read({3, 3}).size(), 0);
  // Taps at 0, 2 and 4: result 1 reads 0, 2, 4.
  const Window dilated{.before = 1, .dilation = 2, .taps = 3};
  EXPECT_EQ(dilated.reach(), 4);
  EXPECT_EQ(dilated.read({1, 2}), (Range{0, 5}));
}

TEST(Windows, OneElementAloneNeedsNoOther) {
  EXPECT_TRUE(Window().is_alone());
  EXPECT_TRUE((Window{.dim = 3, .dilation = 2}).is_alone());
  EXPECT_FALSE((Window{.stride = 2}).is_alone());
  EXPECT_FALSE((Window{.before = 1}).is_alone());
  EXPECT_FALSE((Window{.after = -1}).is_alone());
  EXPECT_FALSE((Window{.taps = 2}).is_alone());
}

TEST(Windows, OfAConvolutionHaveTheWeightsLengths) {
  const std::vector<std::string> expected{"2: stride 2 before 1 after 1 dilation 1 taps 3",
                                          "3: stride 1 before 0 after 0 dilation 2 taps 5"};
  const Asked forward("aten::convolution",
                      {sized({2, 3, 8, 9}), sized({4, 3, 3, 5}), unset(), Ints{2, 1}, Ints{1, 0},
                       Ints{1, 2}, false, Ints{0, 0}, 1});
  EXPECT_EQ(windows_of(forward), expected);
  EXPECT_EQ(window_operand(forward), 0);
  const Asked backward(
      "aten::convolution_backward",
      {sized({2, 4, 4, 1}), sized({2, 3, 8, 9}), sized({4, 3, 3, 5}), unset(), Ints{2, 1},
       Ints{1, 0}, Ints{1, 2}, false, Ints{0, 0}, 1, std::array<bool, 3>{true, true, true}});
  EXPECT_EQ(windows_of(backward), expected);
  EXPECT_EQ(window_operand(backward), 1);
  const Asked transposed("aten::convolution", {sized({2, 3, 8}), sized({3, 4, 3}), unset(), Ints{2},
                                               Ints{1}, Ints{1}, true, Ints{0}, 1});
  EXPECT_EQ(windows_of(transposed), std::vector<std::string>());
}

TEST(Windows, OfAPoolBeginAtItsSpace) {
  // The stride is the kernel's length where it was not passed, and one number is for both.
  EXPECT_EQ(windows_of(Asked("aten::avg_pool2d", {sized({3, 8, 9}), Ints{2, 4}, Ints{}, Ints{1}})),
            (std::vector<std::string>{"1: stride 2 before 1 after 1 dilation 1 taps 2",
                                      "2: stride 4 before 1 after 1 dilation 1 taps 4"}));
  EXPECT_EQ(windows_of(Asked("aten::max_pool2d_with_indices",
                             {sized({2, 3, 8, 9}), Ints{2}, Ints{3}, Ints{0}, Ints{1, 2}})),
            (std::vector<std::string>{"2: stride 3 before 0 after 0 dilation 1 taps 2",
                                      "3: stride 3 before 0 after 0 dilation 2 taps 2"}));
  EXPECT_EQ(windows_of(Asked("aten::avg_pool3d", {sized({2, 3, 8, 9, 10}), Ints{2}})).size(), 3);
  const Asked backward("aten::avg_pool2d_backward", {sized({3, 4, 9}), sized({3, 8, 9}), Ints{2, 1},
                                                     Ints{2, 1}, Ints{0}, false, true, unset()});
  EXPECT_EQ(window_operand(backward), 1);
  EXPECT_EQ(windows_of(backward)[0], "1: stride 2 before 0 after 0 dilation 1 taps 2");
}

TEST(Windows, OfPaddingAreThoseOfPaddedDimensions) {
  // Widths begin with the last dimension; the middle one has none.
  const Asked pad("aten::constant_pad_nd", {sized({5, 6, 7}), Ints{1, 2, 0, 0, -1, 0}});
  EXPECT_EQ(windows_of(pad),
            (std::vector<std::string>{"2: stride 1 before 1 after 2 dilation 1 taps 1",
                                      "0: stride 1 before -1 after 0 dilation 1 taps 1"}));
}

TEST(Windows, ListsHaveANumberForEachDimension) {
  const Asked pool("aten::avg_pool3d", {sized({2, 8, 9, 10}), Ints{2}, Ints{}, Ints{1, 0, 1}});
  EXPECT_EQ(int_list(pool, "kernel_size", 3), (Ints{2, 2, 2}));
  EXPECT_EQ(int_list(pool, "stride", 3), Ints{});
  EXPECT_EQ(int_list(pool, "padding", 3), (Ints{1, 0, 1}));
  EXPECT_EQ(int_list(pool, "dilation", 3), Ints{});          // not an argument
  EXPECT_EQ(int_list(pool, "divisor_override", 3), Ints{});  // not passed
}

TEST(Windows, ShiftsAreFromZeroUpToTheSize) {
  EXPECT_EQ(shift({5, 4}, {2}, {0}, 0), 2);
  EXPECT_EQ(shift({5, 4}, {2}, {0}, 1), 0);
  EXPECT_EQ(shift({5, 4}, {-1}, {-2}, 0), 4);
  EXPECT_EQ(shift({5, 4}, {12}, {0}, 0), 2);
  EXPECT_EQ(shift({5, 4}, {3, 1, 3}, {0, 1, 0}, 0), 1);  // 6 in all
  EXPECT_EQ(shift({0, 4}, {3}, {0}, 0), 0);
}

}  // namespace
}  // namespace intarsia::rules
