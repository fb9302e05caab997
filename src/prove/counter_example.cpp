#include "prove/counter_example.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

namespace intarsia {
namespace {

constexpr int kMostShrinkingRuns = 400;

/// The case with another size of one axis; 0: without it.
Case with_axis(const Case& c, std::size_t axis, std::int64_t size) {
  std::vector<Axis> axes;
  for (std::size_t a = 0; a < c.mesh().axes(); ++a) {
    if (a != axis) axes.push_back({c.mesh().name(a), c.mesh().size(a)});
    if (a == axis && size > 0) axes.push_back({c.mesh().name(a), size});
  }
  const Mesh mesh(axes);
  Case out = c;
  for (Layout& l : out.layouts) {
    std::vector<Placement> placements;
    for (std::size_t a = 0; a < l.mesh().axes(); ++a) {
      if (a != axis || size > 0) placements.push_back(l.placement(a));
    }
    l = Layout(mesh, placements);
  }
  return out;
}

std::vector<Case> smaller_cases(const Case& c) {
  std::vector<Case> out;
  const Mesh& mesh = c.mesh();
  for (std::size_t i = 0; i < c.layouts.size(); ++i) {
    for (std::size_t a = 0; a < mesh.axes(); ++a) {
      if (c.layouts[i].placement(a).is_replicate()) continue;
      Case less = c;
      less.layouts[i] = less.layouts[i].with(a, Placement::replicate());
      out.push_back(std::move(less));
    }
  }
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    if (mesh.axes() > 1) out.push_back(with_axis(c, a, 0));
    if (mesh.size(a) > 2) out.push_back(with_axis(c, a, mesh.size(a) - 1));
  }
  // Dimensions of one length are taken to be one dimension.
  std::set<std::int64_t> lengths;
  for (const TensorSample* t : c.sample.tensors()) lengths.insert(t->sizes.begin(), t->sizes.end());
  for (const std::int64_t length : lengths) {
    for (std::int64_t shorter = 1; shorter < length; ++shorter) {
      Case less = c;
      for (TensorSample* t : less.sample.tensors()) {
        std::replace(t->sizes.begin(), t->sizes.end(), length, shorter);
      }
      out.push_back(std::move(less));
    }
  }
  return out;
}

}  // namespace

CounterExample smallest_counter_example(Bench& bench, const ProofOptions& options, Case c,
                                        std::string difference) {
  int runs = 0;
  const auto still_fails = [&](const Case& smaller) {
    if (++runs > kMostShrinkingRuns) return false;
    const Outcome o = bench.run(smaller, options.backward);
    if (o.difference.empty()) return false;
    difference = o.difference;
    return true;
  };
  bool changed = true;
  while (changed && runs < kMostShrinkingRuns) {
    changed = false;
    for (const Case& smaller : smaller_cases(c)) {
      if (!still_fails(smaller)) continue;
      c = smaller;
      changed = true;
      break;
    }
  }
  if (Bench(options.seed).run(c, options.backward).difference.empty()) {
    difference += "; not alone, but after calls with other numbers";
  }
  return {c.to_string(), difference};
}

}  // namespace intarsia
