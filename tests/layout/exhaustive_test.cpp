// Every small case: strided and ordered spellings, and the view algebra against brute force.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "intarsia/view.h"
#include "layout/oracle.h"

namespace intarsia {
namespace {

using testing::Array;
using testing::for_each_coordinate;
using testing::Indices;

bool same_pieces(const Layout& a, const Layout& b, const Shape& shape) {
  bool same = true;
  for_each_coordinate(a.mesh(), [&](const Coordinate& at) {
    same = same && boxes(a, shape, at) == boxes(b, shape, at);
  });
  return same;
}

std::vector<Mesh> small_meshes(int axes, int most) {
  std::vector<Mesh> out;
  std::vector<int> sizes(static_cast<std::size_t>(axes), 1);
  while (true) {
    std::vector<Axis> list;
    for (int i = 0; i < axes; ++i)
      list.push_back({std::string(1, "abc"[i]), sizes[static_cast<std::size_t>(i)]});
    out.emplace_back(list);
    int i = axes - 1;
    while (i >= 0 && ++sizes[static_cast<std::size_t>(i)] > most)
      sizes[static_cast<std::size_t>(i--)] = 1;
    if (i < 0) return out;
  }
}

TEST(Exhaustive, OrdersAndSplitFactorsRoundTrip) {
  int orders = 0;
  int inexpressible = 0;
  int same_data = 0;
  for (int axes = 1; axes <= 3; ++axes) {
    for (const Mesh& mesh : small_meshes(axes, 4)) {
      const std::vector<Placement> shards(mesh.axes(), Placement::shard(0));
      std::vector<std::string> order = mesh.names();
      do {
        const Layout ordered(mesh, shards, {.order = {{0, order}}});
        const auto spelled = ordered.strided_spelling();
        ++orders;
        if (!spelled) {
          ++inexpressible;
          continue;
        }
        ASSERT_EQ(Layout(mesh, *spelled, {.strided = StridedMeans::order}), ordered)
            << ordered.to_string();
        // Where every cut is even, the strided spelling read as data holds the same elements.
        const Layout as_data(mesh, *spelled);
        for (std::int64_t size = 0; size <= 13; ++size) {
          const bool even = size % mesh.size() == 0;
          if (!even) continue;
          ASSERT_TRUE(same_pieces(ordered, as_data, {size})) << ordered.to_string() << " " << size;
          ++same_data;
        }
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
  std::cout << "orders: " << orders << ", of which no split factors say: " << inexpressible
            << ", equal as data where even: " << same_data << "\n";
  EXPECT_EQ(inexpressible, 0);
}

TEST(Exhaustive, SplitFactorsThatSayAnOrderSpellItAgain) {
  int decoded = 0;
  int refused = 0;
  for (int axes = 1; axes <= 3; ++axes) {
    for (const Mesh& mesh : small_meshes(axes, 4)) {
      std::vector<Placement> placements(mesh.axes(), Placement::shard(0));
      std::vector<std::int64_t> split(mesh.axes(), 1);
      while (true) {
        for (std::size_t a = 0; a < mesh.axes(); ++a)
          placements[a] = Placement::strided_shard(0, split[a]);
        if (order_of_strided(mesh, placements)) {
          const Layout layout(mesh, placements, {.strided = StridedMeans::order});
          const auto spelled = layout.strided_spelling();
          ASSERT_TRUE(spelled) << layout.to_string();
          for (std::size_t a = 0; a < mesh.axes(); ++a) {  // one rank cuts nothing in any spelling
            const bool same = mesh.size(a) == 1 || (*spelled)[a] == placements[a];
            ASSERT_TRUE(same) << layout.to_string();
          }
          ++decoded;
        } else {
          ++refused;
        }
        std::size_t a = 0;
        while (a < split.size() && ++split[a] > 16) split[a++] = 1;
        if (a == split.size()) break;
      }
    }
  }
  std::cout << "split factors that say an order: " << decoded << ", that say none: " << refused
            << "\n";
}

// ---- views ------------------------------------------------------------------------------------

/// All shapes with `dims` dimensions and at most `most` elements (sizes from `least`).
void shapes(int dims, std::int64_t least, std::int64_t most, Shape so_far,
            std::vector<Shape>& out) {
  if (dims == 0) return out.push_back(so_far);
  for (std::int64_t s = least; s <= most; ++s) {
    Shape next = so_far;
    next.push_back(s);
    shapes(dims - 1, least, s == 0 ? most : most / s, next, out);
  }
}

/// All shapes with up to `dims` dimensions and exactly n elements.
std::vector<Shape> factorizations(std::int64_t n, int dims) {
  std::vector<Shape> all;
  for (int d = 1; d <= dims; ++d) shapes(d, 1, n, {}, all);
  std::erase_if(all, [n](const Shape& s) {
    std::int64_t product = 1;
    for (const std::int64_t x : s) product *= x;
    return product != n;
  });
  return all;
}

/// Every layout of a tensor with this shape: R, S, SS with useful split factors, in every order.
std::vector<Layout> layouts(const Mesh& mesh, const Shape& shape, std::int64_t most_split) {
  std::vector<Placement> choices{Placement::replicate()};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    for (std::int64_t k = 1; k <= std::min(most_split, std::max<std::int64_t>(shape[d], 1)); ++k) {
      choices.push_back(Placement::strided_shard(static_cast<int>(d), k));
    }
  }
  std::vector<Layout> out;
  std::vector<std::size_t> pick(mesh.axes(), 0);
  while (true) {
    std::vector<Placement> placements;
    for (const std::size_t p : pick) placements.push_back(choices[p]);
    out.emplace_back(mesh, placements);
    const bool twice =
        mesh.axes() == 2 && placements[0].is_shard() && placements[1].is_shard(placements[0].dim());
    if (twice) {
      out.emplace_back(mesh, placements,
                       LayoutOptions{.order = {{placements[0].dim(), {"b", "a"}}}});
    }
    std::size_t a = 0;
    while (a < pick.size() && ++pick[a] == choices.size()) pick[a++] = 0;
    if (a == pick.size()) return out;
  }
}

/// What the view makes of an array: of the whole tensor, or of a local piece with local sizes.
Array apply(const View& view, const Array& in, const Indices& sizes) {
  if (view.name() == "permute" || view.name() == "transpose") {
    return in.gather(sizes, [&view](const Indices& at) {
      Indices from(at.size());
      for (const View::Group& g : view.groups()) {
        from[static_cast<std::size_t>(g.in[0])] = at[static_cast<std::size_t>(g.out[0])];
      }
      return from;
    });
  }
  if (view.name() == "expand") {
    return in.gather(sizes, [&in](const Indices& at) {
      Indices from(at.end() - static_cast<std::ptrdiff_t>(in.shape.size()), at.end());
      for (std::size_t d = 0; d < from.size(); ++d) {
        if (in.shape[d] == 1) from[d] = 0;
      }
      return from;
    });
  }
  return {sizes, in.values};
}

/// Whether every rank's local piece, viewed with the local sizes, is its piece of the output.
bool exact(const View& view, const Layout& in, const Layout& out) {
  const Array whole = Array::count(Indices(view.input().begin(), view.input().end()));
  const Array viewed = apply(view, whole, Indices(view.output().begin(), view.output().end()));
  bool ok = true;
  for_each_coordinate(in.mesh(), [&](const Coordinate& at) {
    if (!ok) return;
    const Array piece = whole.piece(in, at);
    const Array expected = viewed.piece(out, at);
    const bool can_expand =
        view.name() != "expand" || piece.values.empty() == expected.values.empty();
    const bool same_count =
        view.name() == "expand" || piece.values.size() == expected.values.size();
    ok = can_expand && same_count &&
         (expected.values.empty() || apply(view, piece, expected.shape) == expected);
  });
  return ok;
}

struct Tally {
  int exact = 0;
  int crossing = 0;
  int missed = 0;

  void check(const View& view, const Layout& layout, bool look_for_missed) {
    const ViewedLayout result = view_layout(layout, view);
    const auto text = [&] {
      std::string out = layout.to_string() + " " + view.name();
      for (const auto s : view.input()) out += " " + std::to_string(s);
      out += " ->";
      for (const auto s : view.output()) out += " " + std::to_string(s);
      return out;
    };
    if (result.layout) {
      ++exact;
      ASSERT_TRUE(intarsia::exact(view, layout, *result.layout))
          << text() << " gave " << result.layout->to_string();
      return;
    }
    ++crossing;
    ASSERT_TRUE(intarsia::exact(view, result.crossing->move_to, result.crossing->then)) << text();
    if (!look_for_missed) return;
    const auto all = layouts(layout.mesh(), view.output(), 12);
    const auto found = std::find_if(all.begin(), all.end(), [&](const Layout& out) {
      return intarsia::exact(view, layout, out);
    });
    if (found == all.end()) return;
    ++missed;
    if (missed <= 5)
      std::cout << "missed: " << text() << " could be " << found->to_string() << "\n";
  }
};

std::vector<View> all_views(const Shape& shape) {
  std::vector<View> out;
  std::int64_t n = 1;
  for (const std::int64_t s : shape) n *= s;
  const auto dims = static_cast<std::int64_t>(shape.size());
  if (n > 0) {
    for (const Shape& sizes : factorizations(n, 3)) out.push_back(View::reshape(shape, sizes));
  }
  for (std::int64_t a = 0; a < dims; ++a) {
    for (std::int64_t b = a; b < dims; ++b) {
      out.push_back(View::flatten(shape, a, b));
      out.push_back(View::transpose(shape, a, b));
    }
    out.push_back(View::squeeze(shape, a));
    out.push_back(View::unsqueeze(shape, a));
    if (shape[static_cast<std::size_t>(a)] > 0 && dims < 3) {
      for (const Shape& sizes : factorizations(shape[static_cast<std::size_t>(a)], 2)) {
        out.push_back(View::unflatten(shape, a, sizes));
      }
    }
  }
  out.push_back(View::squeeze(shape));
  std::vector<std::int64_t> order;
  for (std::int64_t d = 0; d < dims; ++d) order.push_back(d);
  do {
    out.push_back(View::permute(shape, order));
  } while (std::next_permutation(order.begin(), order.end()));
  Shape wider{2};
  for (const std::int64_t s : shape) wider.push_back(s == 1 ? 3 : s);
  out.push_back(View::expand(shape, wider));
  return out;
}

void check_views(const std::vector<const char*>& meshes, std::int64_t elements, std::int64_t splits,
                 bool look_for_missed, Tally& tally) {
  std::vector<Shape> all;
  for (int d = 1; d <= 3; ++d) shapes(d, 0, elements, {}, all);
  std::erase_if(all, [elements](const Shape& s) {  // a size 0 says nothing new beside large sizes
    return std::count(s.begin(), s.end(), 0) > 0 && *std::max_element(s.begin(), s.end()) > 3;
  });
  for (const char* text : meshes) {
    const Mesh mesh = Mesh::parse(text);
    for (const Shape& shape : all) {
      const auto candidates = layouts(mesh, shape, splits);
      for (const View& view : all_views(shape)) {
        for (const Layout& layout : candidates) {
          tally.check(view, layout, look_for_missed);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

void report(const char* what, const Tally& tally, bool searched) {
  std::cout << what << ": exact " << tally.exact << ", crossing " << tally.crossing;
  if (searched) std::cout << ", of which could be said but were not found " << tally.missed;
  std::cout << "\n";
}

TEST(Exhaustive, ViewsOverOneAxis) {
  Tally tally;
  check_views({"[a=1]", "[a=2]", "[a=3]", "[a=4]"}, 12, 4, true, tally);
  report("views over one axis", tally, true);
  EXPECT_EQ(tally.missed, 0);
}

TEST(Exhaustive, ViewsOverTwoAxesFindWhatCanBeSaid) {
  Tally tally;
  check_views({"[a=2,b=2]", "[a=2,b=3]"}, 6, 2, true, tally);
  report("views over two axes, small", tally, true);
  // Uneven cuts of uneven cuts, and blocks that do not line up, are refused although a few of them
  // could be said. This may shrink, not grow.
  EXPECT_LE(tally.missed, 3742);
}

TEST(Exhaustive, ViewsOverTwoAxes) {
  Tally tally;
  check_views({"[a=2,b=2]", "[a=2,b=3]", "[a=3,b=2]", "[a=1,b=2]"}, 8, 2, false, tally);
  report("views over two axes", tally, false);
}

}  // namespace
}  // namespace intarsia
