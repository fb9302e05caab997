// Samples: their text, their values, and that every one of them can be called.
#include "prove/sample.h"

#include <gtest/gtest.h>

#include <set>

#include "error_text.h"
#include "intarsia/error.h"
#include "intarsia/prove.h"
#include "intarsia/rule.h"
#include "prove/samples.h"

namespace intarsia {
namespace {

using testing::expect_error;

std::string again(std::string_view text) { return Sample::parse(text).to_string(); }

/// The tensor of a text of its own.
at::Tensor made(std::string_view text, std::uint64_t seed = 1) {
  return TensorSample::parse(text).make(seed);
}

// ---- text ------------------------------------------------------------------------------------

TEST(Sample, PrintsWhatItReads) {
  for (const std::string text : {
           "aten::sum(f64[4, 6])",
           "aten::sum.dim_IntList(f64[4, 6], [-1], True)",
           "aten::sum.dim_IntList(f64[4, 6], None)",
           "aten::sum.dim_IntList(f64[], [], dtype=f32)",
           "aten::mm(f64[2, 3]~(1, 0), f64[3, 4])",
           "aten::add.Tensor(f64[2], i64[2]<6, alpha=2.5)",
           "aten::add.Scalar(f64[2], 1.0, 2)",
           "aten::clamp(f64[3]in(-1, 1), None, 0.5)",
           "aten::cat([f64[2, 3], f64[0], f64[2, 1]], -1)",
           "aten::index.Tensor(f64[4, 5], [None, i64[3]<5])",
           "aten::linalg_vector_norm(f64[4], -inf, [0], dtype=f64)",
           "aten::div.Tensor_mode(f64[4], f64[4]>0, rounding_mode='floor')",
           "aten::div.Tensor_mode(f64[4], f64[4]>0, rounding_mode=None)",
           "aten::_to_copy(f64[2, 3, 4, 5], dtype=bf16, memory_format=channels_last)",
           "aten::nll_loss_forward(f64[4, 3], i64[4]of(1, 1, 0), None, 1, 1)",
           "aten::convolution_backward(f64[2, 4, 3], f64[2, 3, 5], f64[4, 3, 3], [4], [1], [0], "
           "[1], "
           "False, [0], 1, [True, True, False])",
           "aten::max_pool2d_with_indices(f64[2, 3, 4]distinct, [2, 2])",
           "aten::logical_not(bool[3])",
           "aten::abs(c128[3])",
       }) {
    EXPECT_EQ(again(text), text);
    EXPECT_EQ(Sample::parse(text), Sample::parse(again(text)));
  }
}

TEST(Sample, FillsInNamespaceOverloadAndDefaults) {
  EXPECT_EQ(again("mm(f64[2,3],f64[3,4])"), "aten::mm(f64[2, 3], f64[3, 4])");
  EXPECT_EQ(again("add(f64[2], f64[2])"), "aten::add.Tensor(f64[2], f64[2])");
  EXPECT_EQ(again("add(f64[2], 3)"), "aten::add.Scalar(f64[2], 3)");
  EXPECT_EQ(again("sum(f64[2, 3], [1], dtype=None)"), "aten::sum.dim_IntList(f64[2, 3], [1])");
  EXPECT_EQ(again("sum.dim_IntList(f64[2, 3], 1, keepdim=False)"),
            "aten::sum.dim_IntList(f64[2, 3], [1])");
  EXPECT_EQ(again("max_pool2d_with_indices(f64[1,4,4], 2, padding=1)"),
            "aten::max_pool2d_with_indices(f64[1, 4, 4], [2, 2], [], [1, 1])");
  EXPECT_EQ(again("logical_not(b1[3])"), "aten::logical_not(bool[3])");
  EXPECT_EQ(again("abs(f64[2, 3]~(0, 1))"), "aten::abs(f64[2, 3])");
  EXPECT_EQ(Sample::parse("topk(f64[4], 2)").arguments.size(), 5);
}

TEST(Sample, SaysWhatIsWrongAndWhere) {
  const auto refuse = [](std::string_view text, std::initializer_list<std::string> parts) {
    expect_error<ValueError>([&] { Sample::parse(text); }, parts);
  };
  refuse("nosuch(f64[2])", {"[Sample::parse]", "no op aten::nosuch", "loaded?"});
  refuse("sum.nosuch(f64[2])", {"no op aten::sum.nosuch", "aten::sum.dim_IntList"});
  refuse("mm(f64[2, 3])", {"expected argument 'mat2'", "where the text ends", "Tensor mat2"});
  refuse("mm(f64[2, 3], 4)", {"a name at position 14", "argument 'mat2' of aten::mm is a Tensor"});
  refuse("mm(f65[2, 3], f64[3, 4])", {"a dtype such as f64", "at position 3"});
  refuse("mm(f64[2, -3], f64[3, 4])", {"a size, 0 or more", "at position 9"});
  refuse("mm(f64[2, 3], f64[3, 4], f64[2])", {"or ')'", "at position 24"});
  refuse("mm(f64[2, 3], f64[3, 4]) + 1", {"the end of the text"});
  refuse("mm(f64[2, 3], self=f64[3, 4])", {"an argument other than self"});
  refuse("mm(self=f64[2, 3], f64[3, 4])", {"one of the arguments", "at position 18"});
  refuse("sort.stable(f64[2], stable=maybe)", {"True or False", "argument 'stable'"});
  refuse("abs(f64[2, 3]~(0, 2))", {"an order of all 2 dimensions"});
  refuse("abs(i64[2]<0)", {"a limit of 1 or more"});
  refuse("abs(f64[2]in(1, 1))", {"an interval such as in(-1, 1)"});
  refuse("sum(f64[2], dtype=f128)", {"a dtype such as", "argument 'dtype'"});
}

// ---- values ----------------------------------------------------------------------------------

TEST(Sample, HasTheSameValuesForTheSameTextAndSeed) {
  const Sample sample = Sample::parse("addcmul(f64[3, 4], f64[3, 4], f64[3, 4])");
  const auto a = sample.values(7);
  const auto b = Sample::parse(sample.to_string()).values(7);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(a[i].toTensor().equal(b[i].toTensor()));
  EXPECT_FALSE(a[0].toTensor().equal(a[1].toTensor())) << "places differ";
  EXPECT_FALSE(a[0].toTensor().equal(sample.values(8)[0].toTensor())) << "seeds differ";
  // The same in every build: a change here changes all that was proven.
  EXPECT_DOUBLE_EQ(made("f64[2]", 1)[0].item<double>(), 0.25551307164129006);
  EXPECT_TRUE(made("i64[8]", 1).equal(at::tensor({-2, -2, 1, 3, -3, -2, 0, 0}, at::kLong)));
}

TEST(Sample, DrawsFromTheRangeOfItsText) {
  const auto within = [](std::string_view text, double low, double high) {
    const at::Tensor t = made(text).to(at::kDouble);
    EXPECT_GE(t.min().item<double>(), low) << text;
    EXPECT_LE(t.max().item<double>(), high) << text;
    EXPECT_GT(std::get<0>(at::_unique(t)).numel(), 1) << text;
  };
  within("i64[200]", -4, 4);
  within("u8[200]", 0, 4);
  within("bool[200]", 0, 1);
  within("i64[200]<6", 0, 5);
  within("f64[200]>0", 0.5, 2);
  within("i64[200]>0", 1, 4);
  within("f64[200]in(-1, 1)", -1, 1);
  within("i64[200]in(-1, 1)", -1, 1);
  const at::Tensor normal = made("f64[500]");
  EXPECT_LT(std::abs(normal.mean().item<double>()), 0.2);
  EXPECT_LT(std::abs(normal.std().item<double>() - 1), 0.2);
  EXPECT_TRUE(made("i64[5]of(2, 2, 0)").equal(at::tensor({2, 2, 0, 2, 2}, at::kLong)));
  EXPECT_EQ(made("c128[3]").scalar_type(), at::kComplexDouble);
  EXPECT_EQ(made("f64[0, 3]").sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(made("f64[]").dim(), 0);
}

TEST(Sample, DistinctValuesAreApartInSizeToo) {
  for (const std::string_view text : {"f64[40]distinct", "bf16[40]distinct"}) {
    const at::Tensor sizes = std::get<0>(made(text).to(at::kDouble).abs().sort());
    EXPECT_GE(sizes.diff().min().item<double>(), 0.2) << text;
    EXPECT_GT(sizes.min().item<double>(), 0) << text;
  }
}

TEST(Sample, HasDimensionsInMemoryAsItSays) {
  const at::Tensor t = made("f64[2, 3, 4, 5]~(0, 2, 3, 1)");
  EXPECT_EQ(t.sizes(), at::IntArrayRef({2, 3, 4, 5}));
  EXPECT_TRUE(t.is_contiguous(at::MemoryFormat::ChannelsLast));
}

TEST(Sample, ListsItsTensorsAndLetsThemBeChanged) {
  Sample sample = Sample::parse("index(f64[4, 5], [None, i64[3]<5])");
  const auto tensors = sample.tensors();
  ASSERT_EQ(tensors.size(), 2);
  EXPECT_EQ(*tensors[1], TensorSample::parse("i64[3]<5"));
  tensors[0]->sizes[0] = 1;
  tensors[1]->sizes = {};
  EXPECT_EQ(sample.to_string(), "aten::index.Tensor(f64[1, 5], [None, i64[]<5])");
  auto stack = sample.values(1);
  sample.op.callBoxed(&stack);
  EXPECT_EQ(stack[0].toTensor().sizes(), at::IntArrayRef({1}));
  tensors[0]->order = {0, 1, 2};
  expect_error<ValueError>([&] { sample.values(1); }, {"an order of all 2 dimensions"});
}

// ---- the samples of all ops ------------------------------------------------------------------

std::vector<std::string> all_samples() {
  std::vector<std::string> out;
  for (const std::string& name : provable_ops()) {
    const auto samples = samples_of(op_named(name));
    out.insert(out.end(), samples.begin(), samples.end());
  }
  return out;
}

/// Those whose result is infinite or no number, and must be.
const std::set<std::string> kNotFinite{
    "aten::amax(f64[4, 3]of(1, nan, 2, 0.5), [0])",
    "aten::aminmax(f64[4, 5]of(1, nan, 2, 3, 0), dim=1)",
    "aten::max(f64[4]of(1, nan, 2))",
    "aten::max.dim(f64[4, 5]of(1, nan, 2, nan, 0), 1)",
    "aten::max.dim(f64[4, 6]of(-inf), 1)",
    "aten::min.dim(f64[4, 5]of(1, nan, 2, nan, 0), 1)",
    "aten::native_group_norm(f64[3, 4, 3]of(1, nan, 2, 3, 0.5, 4, -1, 2), None, None, 3, 4, 3, 2, "
    "1e-05)",
    "aten::std.correction(f64[4, 1], [1], correction=1)",
    "aten::var.correction(f64[4, 1], [1], correction=1)",
    "aten::var.correction(f64[4, 3]of(1, 1, 2), [0], correction=4)",
    "aten::var.correction(f64[4, 6], [1], correction=8)",
    "aten::var_mean.correction(f64[4, 6], [1], correction=6)",
    "aten::logsumexp(f64[2, 3]of(-inf), [1])",
    "aten::max_pool2d_with_indices(f64[1, 1, 5, 4]of(-inf), [3, 2], [2, 2], [1, 1])",
    "aten::max_pool2d_with_indices(f64[1, 1, 5, 4]of(1, nan, 2), [3, 2], [2, 2], [1, 1])",
    "aten::max_pool2d_with_indices(f64[1, 1, 7, 4]of(-inf), [3, 2], [2, 1], [1, 1], [2, 1])",
    "aten::nll_loss_forward(f64[4, 3], i64[4]of(1), None, 1, 1)",
};

void collect(const c10::IValue& value, std::vector<at::Tensor>& out) {
  if (value.isTensor() && value.toTensor().defined()) out.push_back(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) out.push_back(t);
  }
}

TEST(Samples, CanAllBeCalled) {
  std::set<std::string> not_finite;
  for (const std::string& text : all_samples()) {
    const Sample sample = Sample::parse(text);
    EXPECT_EQ(sample.to_string(), text);
    std::int64_t elements = 0;
    for (const TensorSample* t : std::as_const(sample).tensors()) elements += t->count();
    EXPECT_LT(elements, 500) << text;
    for (const std::uint64_t seed : {1, 2, 3}) {
      torch::jit::Stack stack = sample.values(seed);
      try {
        sample.op.callBoxed(&stack);
      } catch (const std::exception& error) {
        ADD_FAILURE() << text << '\n' << error.what();
        break;
      }
      std::vector<at::Tensor> results;
      for (const c10::IValue& value : stack) collect(value, results);
      for (const at::Tensor& t : results) {
        const bool finite = t.scalar_type() != at::kDouble || t.isfinite().all().item<bool>();
        if (!finite) not_finite.insert(text);
      }
    }
  }
  EXPECT_EQ(not_finite, kNotFinite);
}

TEST(Samples, AreThereForEveryRule) {
  std::map<std::string, std::size_t> count;
  for (const std::string& text : all_samples()) {
    ++count[text.substr(6, text.find_first_of(".(") - 6)];
  }
  for (const auto& rule : all_rules()) EXPECT_GE(count[rule->name], 3) << rule->name;
}

TEST(Samples, ComeSmallestFirstAndOnce) {
  for (const std::string& name : provable_ops()) {
    const auto samples = samples_of(op_named(name));
    EXPECT_EQ(std::set(samples.begin(), samples.end()).size(), samples.size()) << name;
    std::int64_t before = 0;
    for (const std::string& text : samples) {
      EXPECT_TRUE(text.starts_with(name + '(')) << text;
      std::int64_t elements = 0;
      const Sample sample = Sample::parse(text);
      for (const TensorSample* t : sample.tensors()) elements += t->count();
      EXPECT_GE(elements, before) << text;
      before = elements;
    }
  }
}

TEST(Samples, ComeFromTheSchemaOfPointwiseOps) {
  const auto samples = samples_of(op_named("aten::maximum"));
  const auto has = [&](std::string_view text) {
    return std::find(samples.begin(), samples.end(), text) != samples.end();
  };
  EXPECT_TRUE(has("aten::maximum(f64[3, 4], f64[3, 1])"));
  EXPECT_TRUE(has("aten::maximum(f64[4, 6]~(1, 0), f64[4, 6])"));
  EXPECT_TRUE(has("aten::maximum(i64[5], f32[5])"));
  EXPECT_FALSE(has("aten::maximum(c128[5], c128[5])")) << "there is no such op";
  EXPECT_TRUE(samples_of(op_named("aten::equal")).empty()) << "no tensor";
  EXPECT_TRUE(samples_of(op_named("aten::rrelu")).empty()) << "random";
  EXPECT_TRUE(samples_of(op_named("aten::add_.Tensor")).empty()) << "writes";
  EXPECT_TRUE(samples_of(op_named("aten::nonzero")).empty()) << "not pointwise";
}

}  // namespace
}  // namespace intarsia
