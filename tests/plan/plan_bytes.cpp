// What plans move where only bytes count (no latency, no overhead, free copies), beside what no
// plan can do without: the parts of its new piece that a rank does not hold.
//
//     plan_bytes MESH SHAPE all     every pair of layouts of R and S, in every order; a summary
//     plan_bytes MESH SHAPE read    pairs `S(0),R -> R,S(0)` from standard input; for each a line:
//                                   received missing received_by_all missing_by_all
#include <algorithm>
#include <iostream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "intarsia/plan.h"
#include "layout/all_layouts.h"

namespace intarsia {
namespace {

Topology only_bytes() {
  Topology t;
  t.levels = {{"all", 0, {0, 0, 1e9}}};
  return t;
}

Traffic moved(const Layout& from, const Layout& to, const std::vector<std::int64_t>& shape) {
  static const Topology kTopology = only_bytes();
  return traffic(*make_plan(from, to, shape, {4, &kTopology, std::nullopt}));
}

double ratio(std::int64_t got, std::int64_t least) {
  if (least == 0) return got == 0 ? 1 : std::numeric_limits<double>::infinity();
  return static_cast<double>(got) / static_cast<double>(least);
}

int every_pair(const Mesh& mesh, const std::vector<std::int64_t>& shape) {
  std::vector<Placement> choices{Placement::replicate()};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    choices.push_back(Placement::shard(static_cast<int>(d)));
  }
  const std::vector<Layout> layouts = testing::all_layouts(mesh, choices);
  std::int64_t pairs = 0;
  std::int64_t more = 0;
  double sum = 0;
  double worst = 1;
  for (const Layout& from : layouts) {
    for (const Layout& to : layouts) {
      const Traffic t = moved(from, to, shape);
      const double r =
          std::max(ratio(t.received, t.missing), ratio(t.received_by_all, t.missing_by_all));
      ++pairs;
      sum += r;
      worst = std::max(worst, r);
      if (t.received == t.missing && t.received_by_all == t.missing_by_all) continue;
      if (++more <= 3) {
        std::cout << "  more than is missing, by " << r << ": " << from.to_string() << " -> "
                  << to.placements_text() << '\n';
      }
    }
  }
  std::cout << "pairs " << pairs << " mean " << sum / static_cast<double>(pairs) << " worst "
            << worst << " more " << more << '\n';
  return more == 0 ? 0 : 1;
}

int given_pairs(const Mesh& mesh, const std::vector<std::int64_t>& shape) {
  for (std::string line; std::getline(std::cin, line);) {
    const auto arrow = line.find(" -> ");
    const Traffic t = moved(Layout::parse(line.substr(0, arrow), mesh),
                            Layout::parse(line.substr(arrow + 4), mesh), shape);
    std::cout << t.received << ' ' << t.missing << ' ' << t.received_by_all << ' '
              << t.missing_by_all << '\n';
  }
  return 0;
}

}  // namespace
}  // namespace intarsia

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "plan_bytes MESH SHAPE all|read\n";
    return 2;
  }
  const auto mesh = intarsia::Mesh::parse(argv[1]);
  std::vector<std::int64_t> shape;
  std::istringstream in(argv[2]);
  for (std::string part; std::getline(in, part, ',');) shape.push_back(std::stoll(part));
  const bool all = std::string(argv[3]) == "all";
  return all ? intarsia::every_pair(mesh, shape) : intarsia::given_pairs(mesh, shape);
}
