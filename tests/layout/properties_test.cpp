// Random layouts: boxes tile the tensor, agree with brute force, and every text form parses back.
// The number of cases comes from RC_PARAMS (max_success=...).
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <map>

#include "intarsia/boxes.h"
#include "intarsia/tensor_type.h"
#include "layout/oracle.h"

namespace intarsia {
namespace {

using testing::for_each_coordinate;

/// Full-sized from the first case on; RapidCheck would begin with small ranges.
int pick(int low, int high) { return *rc::gen::resize(100, rc::gen::inRange(low, high + 1)); }

std::vector<std::string> shuffled(std::vector<std::string> names) {
  for (std::size_t i = names.size(); i > 1; --i) {
    std::swap(names[i - 1], names[static_cast<std::size_t>(pick(0, static_cast<int>(i) - 1))]);
  }
  return names;
}

/// A mesh of up to four axes, often a slice, a range or another order of a larger one.
Mesh random_mesh() {
  std::vector<Axis> axes;
  const int count = pick(0, 4);
  for (int i = 0; i < count; ++i) axes.push_back({std::string(1, "abcd"[i]), pick(1, 5)});
  Mesh mesh(axes, pick(0, 3));
  if (count == 0) return mesh;
  const std::string any = axes[static_cast<std::size_t>(pick(0, count - 1))].name;
  switch (pick(0, 5)) {
    case 0: {
      std::vector<std::string> names = shuffled(mesh.names());
      names.resize(static_cast<std::size_t>(pick(1, count)));
      return mesh.slice(names, mesh.base() + pick(0, static_cast<int>(mesh.size()) - 1));
    }
    case 1:
      return mesh.reorder(shuffled(mesh.names()));
    case 2:
      return mesh.range(any, 0, pick(1, static_cast<int>(mesh.size(any))));
    case 3:
      return mesh.flatten(shuffled(mesh.names()), "f");
    case 4: {
      std::vector<std::int64_t> order;
      for (const auto& name : shuffled([&] {
             std::vector<std::string> places;
             for (std::int64_t i = 0; i < mesh.size(any); ++i) places.push_back(std::to_string(i));
             return places;
           }())) {
        order.push_back(std::stoll(name));
      }
      return mesh.permute(any, order);
    }
    default:
      return mesh;
  }
}

Layout random_layout(const Mesh& mesh, int dims) {
  std::vector<Placement> placements;
  const Placement partial = Placement::partial(pick(0, 1) == 0 ? Reduction::sum : Reduction::max);
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    const int kind = pick(0, 5);
    const int dim = dims > 0 ? pick(0, dims - 1) : 0;
    if (kind == 0 || dims == 0) {
      placements.push_back(pick(0, 1) == 0 ? Placement::replicate() : partial);
    } else {
      placements.push_back(kind == 1 ? Placement::strided_shard(dim, pick(1, 6))
                                     : Placement::shard(dim));
    }
  }
  LayoutOptions options;
  for (int d = 0; d < dims; ++d) {
    std::vector<std::string> names;
    for (std::size_t a = 0; a < mesh.axes(); ++a) {
      if (placements[a].is_shard(d)) names.push_back(mesh.name(a));
    }
    if (names.size() > 1 && pick(0, 1) == 0) options.order.emplace_back(d, shuffled(names));
  }
  return Layout(mesh, placements, options);
}

Shape random_shape() {
  Shape shape;
  const int dims = pick(0, 3);
  for (int d = 0; d < dims; ++d) shape.push_back(pick(0, 13));
  return shape;
}

TEST(LayoutProperties, BoxesTileTheTensorOncePerReplicaGroup) {
  EXPECT_TRUE(rc::check([] {
    const Mesh mesh = random_mesh();
    const Shape shape = random_shape();
    const Layout layout = random_layout(mesh, static_cast<int>(shape.size()));
    RC_LOG() << layout.to_string();
    std::int64_t numel = 1;
    for (const std::int64_t s : shape) numel *= s;

    // Ranks that differ only along axes that do not cut are replicas: each such group holds every
    // element exactly once.
    std::map<std::vector<std::int64_t>, std::vector<int>> holders;
    for_each_coordinate(mesh, [&](const Coordinate& at) {
      std::vector<std::int64_t> group;
      for (std::size_t a = 0; a < mesh.axes(); ++a) {
        if (!layout.placement(a).is_shard()) group.push_back(at[a]);
      }
      auto& count = holders[group];
      count.resize(static_cast<std::size_t>(numel));
      const Boxes b = boxes(layout, shape, at);
      for (std::int64_t i = 0; i < b.count(); ++i) {
        const Box box = b.box(i);
        Shape index;
        for (const Range& r : box) index.push_back(r.begin);
        bool more = true;
        while (more) {
          std::int64_t flat = 0;
          for (std::size_t d = 0; d < box.size(); ++d) flat = flat * shape[d] + index[d];
          ++count[static_cast<std::size_t>(flat)];
          more = false;
          for (std::size_t d = box.size(); d-- > 0 && !more;) {
            more = ++index[d] < box[d].end;
            if (!more) index[d] = box[d].begin;
          }
        }
      }
    });
    for (const auto& [group, count] : holders) {
      RC_ASSERT(std::all_of(count.begin(), count.end(), [](int n) { return n == 1; }));
    }
  }));
}

TEST(LayoutProperties, BoxesAgreeWithBruteForceInLocalOrder) {
  EXPECT_TRUE(rc::check([] {
    const Mesh mesh = random_mesh();
    const Shape shape = random_shape();
    const Layout layout = random_layout(mesh, static_cast<int>(shape.size()));
    RC_LOG() << layout.to_string();
    for_each_coordinate(mesh, [&](const Coordinate& at) {
      const Boxes b = boxes(layout, shape, at);
      RC_ASSERT(b.local_shape() == local_shape(layout, shape, at));
      for (std::size_t d = 0; d < shape.size(); ++d) {
        const auto expected = testing::naive_indices(layout, static_cast<int>(d), shape[d], at);
        RC_ASSERT(testing::listed_indices(b, d) == expected);
        RC_ASSERT(static_cast<std::int64_t>(expected.size()) == b.local_shape()[d]);
      }
    });
  }));
}

TEST(LayoutProperties, MeshesFindEveryRankAndNoOther) {
  EXPECT_TRUE(rc::check([] {
    const Mesh mesh = random_mesh();
    std::map<std::int64_t, Coordinate> members;
    for_each_coordinate(mesh, [&](const Coordinate& at) {
      RC_ASSERT(members.emplace(mesh.rank_at(at), at).second);
    });
    for (std::int64_t rank = 0; rank < 700; ++rank) {
      const auto found = mesh.coordinate_of(rank);
      RC_ASSERT(found.has_value() == members.contains(rank));
      if (found) RC_ASSERT(*found == members.at(rank));
    }
  }));
}

TEST(LayoutProperties, TextFormsParseBack) {
  EXPECT_TRUE(rc::check([] {
    const Mesh mesh = random_mesh();
    const Shape shape = random_shape();
    const Layout layout = random_layout(mesh, static_cast<int>(shape.size()));
    const TensorType type{DType::f32, shape, layout};
    RC_ASSERT(Mesh::parse(mesh.to_string()) == mesh);
    RC_ASSERT(Layout::parse(layout.to_string()) == layout);
    RC_ASSERT(TensorType::parse(type.to_string(), mesh) == type);
  }));
}

}  // namespace
}  // namespace intarsia
