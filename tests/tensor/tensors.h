// Helpers for tests of distributed tensors.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "intarsia/in_process.h"
#include "intarsia/tensor.h"

namespace intarsia::testing {

/// A generator of its own: the default one belongs to the process, not to the rank.
inline at::Tensor values(std::vector<std::int64_t> sizes, std::uint64_t seed,
                         at::ScalarType dtype = at::kDouble) {
  at::Generator g = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, g, at::TensorOptions(at::kDouble)).to(dtype);
}

/// Layouts of a mesh of two axes that between them have every kind of placement.
inline std::vector<std::string> some_layouts() {
  return {"R,R",       "S(0),R",    "R,S(1)",       "S(0),S(1)",          "S(1),S(0)",
          "S(0),S(0)", "P(sum),R",  "P(sum),S(0)",  "S(1),P(sum)",        "P(sum),P(sum)",
          "P(avg),R",  "SS(0,2),R", "S(0),SS(1,2)", "S(0),S(0) | 0:tp>dp"};
}

/// Compares a distributed tensor with the whole that it should be.
inline void expect_whole(const at::Tensor& got, const at::Tensor& want, const std::string& what,
                         double tolerance = 1e-10) {
  const at::Tensor whole = has_layout(got) ? full(got.detach()) : got.detach();
  ASSERT_EQ(whole.sizes(), want.sizes()) << what;
  ASSERT_EQ(whole.scalar_type(), want.scalar_type()) << what;
  ASSERT_TRUE(at::allclose(whole.to(at::kDouble), want.detach().to(at::kDouble), tolerance,
                           tolerance, /*equal_nan=*/true))
      << what << '\n'
      << whole << '\n'
      << want.detach();
}

/// Runs `body` on every rank of a mesh, as threads.
inline void on_mesh(const Mesh& mesh, const std::function<void(World&)>& body) {
  run_in_process(static_cast<int>(mesh.highest()) + 1, body, {.timeout = std::chrono::seconds(30)});
}

}  // namespace intarsia::testing
