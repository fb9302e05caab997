#include "checkpoint/plan/name_map.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "checkpoint/format/stored_dtype.h"
#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;

SavedTensor tensor(const char* name, Shape shape, DType dtype = DType::f32) {
  return {name, {dtype, std::move(shape), {}}};
}

const std::vector<SavedTensor> kSaved{
    tensor("m.0.q", {8, 4}),         tensor("m.0.k", {2, 4}),   tensor("m.0.v", {2, 4}),
    tensor("m.1.q", {8, 4}),         tensor("m.1.k", {2, 4}),   tensor("m.1.v", {2, 4}),
    tensor("m.0.up.weight", {6, 4}), tensor("m.e.0.w", {3, 5}), tensor("m.e.1.w", {3, 5}),
    tensor("head", {7, 4}),          tensor("norm", {4})};

std::vector<std::string> mapped(const char* rules, std::span<const SavedTensor> saved = kSaved) {
  std::vector<std::string> out;
  for (const MappedTensor& each : NameMap::parse("map", rules).apply(saved)) {
    std::string text = concat(each.name, ' ', sizes_text(each.dtype, each.shape));
    for (const MappedBlock& block : each.blocks) {
      if (each.is_saved()) continue;
      text += concat(' ', saved[block.tensor].name, block.from, "->", block.to);
    }
    out.push_back(text);
  }
  return out;
}

TEST(NameMap, WithoutRulesAllStay) {
  const auto out = mapped("[]");
  ASSERT_EQ(out.size(), kSaved.size());
  EXPECT_EQ(out[0], "m.0.q f32[8,4]");
}

TEST(NameMap, NamesAreChangedByPatterns) {
  const auto out = mapped(R"([{"from": "m.*.up.weight", "to": "layers.*.w1"}])");
  EXPECT_EQ(out[0], "layers.0.w1 f32[6,4]");
  EXPECT_EQ(out.size(), kSaved.size());
}

TEST(NameMap, SeveralAreJoinedAndSplit) {
  const char* rules =
      R"([{"from": ["m.*.q", "m.*.k", "m.*.v"], "to": "l.*.qkv", "dim": 0, "sizes": [4, 1, 1]}])";
  const auto out = mapped(rules);
  EXPECT_EQ(out[0], "l.0.qkv f32[12,4] m.0.q[0,8)->[0,8) m.0.k[0,2)->[8,10) m.0.v[0,2)->[10,12)");
  EXPECT_EQ(out[1].substr(0, 18), "l.1.qkv f32[12,4] ");
  const std::vector<SavedTensor> model{tensor("l.5.qkv", {12, 4})};
  const auto back = NameMap::parse("map", rules).reversed().apply(model);
  ASSERT_EQ(back.size(), 3U);
  EXPECT_EQ(back[1].name, "m.5.k");
  EXPECT_EQ(back[1].shape, (Shape{2, 4}));
  EXPECT_EQ(back[1].blocks[0].from, (Range{8, 10}));
}

TEST(NameMap, NumberedOnesAreStackedAndUnstacked) {
  const char* rules = R"([{"from": "m.e.#.w", "to": "experts", "stack": 1}])";
  EXPECT_EQ(mapped(rules)[0], "experts f32[3,2,5] m.e.0.w[0,1)->[0,1) m.e.1.w[0,1)->[1,2)");
  const std::vector<SavedTensor> model{tensor("experts", {3, 2, 5})};
  const auto back = NameMap::parse("map", rules).reversed().apply(model);
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(back[1].name, "m.e.1.w");
  EXPECT_EQ(back[1].shape, (Shape{3, 5}));
  EXPECT_EQ(back[1].blocks[0].from, (Range{1, 2}));
}

TEST(NameMap, DimensionsTakeAnotherOrder) {
  const char* rules = R"([{"from": "e", "to": "f", "order": [1, 2, 0]}])";
  const std::vector<SavedTensor> saved{tensor("e", {3, 2, 5})};
  EXPECT_EQ(mapped(rules, saved)[0].substr(0, 12), "f f32[2,5,3]");
  const std::vector<SavedTensor> model{tensor("f", {2, 5, 3})};
  EXPECT_EQ(NameMap::parse("map", rules).reversed().apply(model)[0].shape, (Shape{3, 2, 5}));
}

TEST(NameMap, WhatDoesNotFitIsNamed) {
  const auto refused = [](const char* rules, const char* reason) {
    expect_error<ValueError>([&] { mapped(rules); }, {reason});
  };
  refused(R"([{"from": "none", "to": "a"}])",
          "the rule 'none' to 'a': no tensor is called like 'none'");
  refused(R"([{"from": ["m.*.q", "m.*.z"], "to": "a.*"}])", "there is no 'm.0.z'");
  refused(R"([{"from": ["head", "norm"], "to": "a"}])", "'norm' is f32[4] beside f32[7,4]");
  refused(R"([{"from": "head", "to": ["a", "b"]}])", "a dimension of 7 is not shared by 1:1");
  refused(R"([{"from": "head", "to": ["a", "b"], "dim": 2}])", "no dimension 2 in [7,4]");
  refused(R"([{"from": "head", "to": "norm"}])", "two tensors would be called 'norm'");
  refused(R"([{"from": "head", "to": "a", "order": [0]}])", "[7,4] has not 1 dimensions");
  refused(R"([{"from": "head", "to": "a"}, {"from": "head", "to": "b"}])", "no tensor is called");
}

TEST(NameMap, WhatIsNoRuleIsRefused) {
  const auto refused = [](const char* rules, const char* reason) {
    expect_error<FileError>([&] { NameMap::parse("map.json", rules); }, {"map.json", reason});
  };
  refused("{}", "is not a list");
  refused(R"([{"from": "a"}])", "to");
  refused(R"([{"from": "a", "to": "b", "cat": 0}])", "unknown 'cat'");
  refused(R"([{"from": ["a", "b"], "to": ["c", "d"]}])", "several names on both sides");
  refused(R"([{"from": "a.*", "to": "b"}])", "another number of '*'");
  refused(R"([{"from": "a.#", "to": "b.#"}])", "'#' on both sides");
  refused(R"([{"from": "a", "to": "b", "stack": 0}])", "stacks one tensor");
  refused(R"([{"from": ["a", "b"], "to": "c", "sizes": [1]}])", "1 sizes of 2 tensors");
  refused(R"([{"from": "a", "to": "b", "order": [0, 2]}])", "an order that is none");
  refused(R"([{"from": "a", "to": "b", "dim": -1}])", "");
}

}  // namespace
}  // namespace intarsia::checkpoint
