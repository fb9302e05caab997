// Ranks outside the mesh hold no pieces, and must know of every result what those inside know.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/lockstep.h"
#include "intarsia/prove.h"
#include "intarsia/tensor.h"
#include "prove/case.h"
#include "prove/combinations.h"
#include "prove/samples.h"

namespace intarsia {
namespace {

/// What is known of the results of a call; the first words of the error where there are none.
std::string known(const Sample& sample, const std::vector<Layout>& layouts, World& world) {
  try {
    const torch::jit::Stack values = sample.values(1);
    std::vector<at::Tensor> tensors = tensors_in(values);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i] = distribute(tensors[i], layouts[i], world);
    }
    torch::jit::Stack stack = with_tensors(values, tensors);
    sample.op.callBoxed(&stack);
    std::string text;
    for (const at::Tensor& t : tensors_in(stack)) {
      text += t.defined() ? concat(describe(t), " strides (", join(t.strides()), ") ") : "none ";
    }
    return text;
  } catch (const std::exception& e) {
    return concat("throws ", std::string(e.what()).substr(0, 200));
  }
}

TEST(OutsideTheMesh, EveryOpSaysTheSameOfItsResults) {
  const Mesh mesh = Mesh::parse("[a=2]");
  const Lockstep inside(mesh);
  WorldParts parts;
  parts.hosted = {};
  parts.size = 2;
  const auto outside = World::assemble(std::move(parts));
  const at::NoGradGuard no_grad;
  constexpr std::size_t kSamples = 6;
  constexpr std::size_t kLayouts = 4;
  int calls = 0;
  for (const std::string& name : provable_ops()) {
    const auto texts = samples_of(op_named(name));
    for (std::size_t s = 0; s < std::min(texts.size(), kSamples); ++s) {
      const Sample sample = Sample::parse(texts[s]);
      std::uint64_t lot = hash_text(texts[s]);
      for (std::size_t k = 0; k < kLayouts; ++k) {
        std::vector<Layout> layouts;
        for (const TensorSample* t : sample.tensors()) {
          const auto choices = placements_for(*t);
          lot = hash_mix(lot, k + 1);
          layouts.emplace_back(mesh, std::vector<Placement>{choices[lot % choices.size()]});
        }
        const std::string want = known(sample, layouts, inside.world());
        EXPECT_EQ(known(sample, layouts, *outside), want) << Case{sample, layouts}.to_string();
        ++calls;
      }
    }
  }
  std::cout << calls << " calls compared\n";
}

}  // namespace
}  // namespace intarsia
