// Ranks outside the mesh hold no pieces, and must know of every result what those inside know.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/lockstep.h"
#include "intarsia/prove.h"
#include "intarsia/tensor.h"
#include "prove/case.h"
#include "prove/samples.h"

namespace intarsia {
namespace {

using torch::jit::Stack;

/// The same arguments, with their tensors laid out in a world.
Stack laid_out(const Stack& values, const std::vector<Layout>& layouts, World& world) {
  Stack out = values;
  std::size_t next = 0;
  const auto place = [&](const at::Tensor& t) { return distribute(t, layouts[next++], world); };
  for (c10::IValue& v : out) {
    if (v.isTensor()) {
      v = place(v.toTensor());
    } else if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : v.toTensorVector()) list.push_back(place(t));
      v = list;
    } else if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& e : v.toListRef()) {
        list.push_back(e.isTensor() ? std::optional(place(e.toTensor())) : std::nullopt);
      }
      v = list;
    }
  }
  return out;
}

/// What is known of the results of a call; the first words of the error where there are none.
std::string known(const Sample& sample, const std::vector<Layout>& layouts, World& world) {
  try {
    Stack stack = laid_out(sample.values(1), layouts, world);
    sample.op.callBoxed(&stack);
    std::string text;
    const auto add = [&](const at::Tensor& t) {
      text += t.defined() ? concat(describe(t), " strides (", join(t.strides()), ") ") : "none ";
    };
    for (const c10::IValue& v : stack) {
      if (v.isTensor()) add(v.toTensor());
      if (v.isTensorList()) {
        for (const at::Tensor& t : v.toTensorVector()) add(t);
      }
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
    const auto dot = name.find('.');
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
    const auto texts = samples_of(op);
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
