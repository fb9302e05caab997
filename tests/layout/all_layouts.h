// Every layout of a tensor over a small mesh, for tests that go through all pairs.
#pragma once

#include <algorithm>
#include <vector>

#include "intarsia/layout.h"

namespace intarsia::testing {

/// All combinations of `choices` on the axes of the mesh that make a layout, with every order of
/// cuts.
inline std::vector<Layout> all_layouts(const Mesh& mesh, const std::vector<Placement>& choices) {
  std::vector<Layout> out;
  std::vector<std::size_t> pick(mesh.axes(), 0);
  while (true) {
    std::vector<Placement> placements;
    for (const std::size_t p : pick) placements.push_back(choices[p]);
    std::vector<std::string> order = mesh.names();
    do {  // of all axes, of which each dimension takes its own
      LayoutOptions options;
      for (int dim = 0; dim < static_cast<int>(kMaxDims); ++dim) {
        std::vector<std::string> cutting;
        for (const std::string& name : order) {
          if (placements[mesh.axis_index(name)].is_shard(dim)) cutting.push_back(name);
        }
        if (cutting.size() > 1) options.order.emplace_back(dim, cutting);
      }
      const Layout layout(mesh, placements, options);
      if (std::find(out.begin(), out.end(), layout) == out.end()) out.push_back(layout);
    } while (std::next_permutation(order.begin(), order.end()));
    std::size_t a = 0;
    while (a < pick.size() && ++pick[a] == choices.size()) pick[a++] = 0;
    if (a == pick.size()) return out;
  }
}

/// Reads placements from their text forms.
inline std::vector<Placement> placements(std::initializer_list<const char*> texts) {
  std::vector<Placement> out;
  for (const char* text : texts) out.push_back(Placement::parse(text));
  return out;
}

}  // namespace intarsia::testing
