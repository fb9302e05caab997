#include "context/attend/device_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace intarsia::context {
namespace {

AttentionKernel by_blocks() { return attention_kernel(at::kCPU, at::kFloat, 8, 6, false); }
AttentionKernel of_the_cpu() { return attention_kernel(at::kCPU, at::kFloat, 8, 8, false); }

bool agrees_on_cpu(const AttentionKernel& kernel, at::ScalarType dtype = at::kFloat) {
  return agrees(kernel, by_blocks(), at::kCPU, dtype, 8, 8);
}

/// A kernel that does something else with what a right one gives.
template <class Spoil>
AttentionKernel spoiled(const Spoil& spoil) {
  const AttentionKernel right = of_the_cpu();
  AttentionKernel out = right;
  out.forward = [=](const AttentionBlock& b) {
    AttentionBlock changed = b;
    auto made = right.forward(changed);
    spoil(changed, made);
    return made;
  };
  return out;
}

TEST(DeviceKernels, OneThatIsRightAgreesInEveryDtype) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    EXPECT_TRUE(agrees_on_cpu(of_the_cpu(), dtype)) << dtype;
  }
}

TEST(DeviceKernels, FaultsOfForwardAreSeen) {
  using Made = std::pair<at::Tensor, at::Tensor>;
  EXPECT_FALSE(agrees_on_cpu(spoiled([](const AttentionBlock&, Made& made) {
    made.second = made.second / std::log(2.0);  // logsumexps to base 2
  })));
  EXPECT_FALSE(agrees_on_cpu(spoiled([](const AttentionBlock& b, Made& made) {
    if (b.bias.defined()) made.first = made.first.roll(1, 2);
  })));
  EXPECT_FALSE(agrees_on_cpu(spoiled([](const AttentionBlock& b, Made& made) {
    if (b.causal) made.first = made.first.roll(1, 1);  // other heads share keys
  })));
}

TEST(DeviceKernels, FaultsOfBackwardAreSeen) {
  for (std::size_t which = 0; which < 3; ++which) {
    AttentionKernel kernel = of_the_cpu();
    const auto right = kernel.backward;
    kernel.backward = [=](const AttentionBlock& b, const at::Tensor& grad, const at::Tensor& out,
                          const at::Tensor& sums) {
      auto grads = right(b, grad, out, sums);
      grads[which] = grads[which] * 1.01;
      return grads;
    };
    EXPECT_FALSE(agrees_on_cpu(kernel)) << which;
  }
}

TEST(DeviceKernels, OneThatThrowsDoesNotAgree) {
  // The op of CUDA has no kernel for tensors of the CPU.
  EXPECT_FALSE(agrees_on_cpu(efficient_kernel()));
  EXPECT_FALSE(efficient_kernel_agrees(by_blocks(), at::kCPU, at::kFloat, 8, 8));
}

}  // namespace
}  // namespace intarsia::context
