// Writes random cases of local shapes and offsets, one JSON object per line, for a comparison with
// PyTorch's functions.
//
//     reference_dump COUNT
#include <iostream>
#include <random>
#include <string>

#include "base/text.h"
#include "intarsia/boxes.h"

int main(int argc, char** argv) {
  using namespace intarsia;
  const int count = argc > 1 ? std::stoi(argv[1]) : 10000;
  std::mt19937_64 random(20260101);
  const auto pick = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int i = 0; i < count; ++i) {
    std::vector<Axis> axes;
    const int axis_count = pick(1, 4);
    for (int a = 0; a < axis_count; ++a) axes.push_back({std::string(1, "abcd"[a]), pick(1, 5)});
    const Mesh mesh(axes);
    Shape shape;
    const int dims = pick(1, 4);
    for (int d = 0; d < dims; ++d) shape.push_back(pick(0, 13));
    std::vector<Placement> placements;
    for (int a = 0; a < axis_count; ++a) {
      const int kind = pick(0, 9);
      placements.push_back(kind == 0   ? Placement::replicate()
                           : kind == 1 ? Placement::partial()
                           : kind < 5  ? Placement::strided_shard(pick(0, dims - 1), pick(2, 6))
                                       : Placement::shard(pick(0, dims - 1)));
    }
    const Layout layout(mesh, placements);
    const Coordinate at = *mesh.coordinate_of(pick(0, static_cast<int>(mesh.size()) - 1));
    const Boxes b = boxes(layout, shape, at);
    std::vector<std::int64_t> sizes;
    for (const Axis& a : axes) sizes.push_back(a.size);
    std::vector<std::string> quoted;
    for (const Placement& p : placements) quoted.push_back(concat('"', p, '"'));
    std::cout << concat("{\"mesh\": [", join(sizes), "], \"placements\": [", join(quoted),
                        "], \"shape\": [", join(shape), "], \"at\": [", join(at), "], \"local\": [",
                        join(b.local_shape()), "], \"offset\": [", join(b.offset()), "]}\n");
  }
}
