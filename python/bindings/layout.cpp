// Meshes, placements, layouts, boxes, tensor types.
#include <pybind11/native_enum.h>

#include "bind.h"
#include "intarsia/boxes.h"
#include "intarsia/layout.h"
#include "intarsia/mesh.h"
#include "intarsia/picture.h"
#include "intarsia/placement.h"
#include "intarsia/tensor_type.h"

using namespace pybind11::literals;

namespace intarsia {
namespace {

using Names = std::vector<std::string>;
using Sizes = std::vector<std::int64_t>;
using Order = std::vector<std::pair<int, Names>>;

/// `{"dp": 2, "tp": 4}` or `[("dp", 2), ("tp", 4)]`.
std::vector<Axis> to_axes(const py::object& given) {
  const py::object pairs =
      py::isinstance<py::dict>(given) ? py::object(given.attr("items")()) : given;
  std::vector<Axis> axes;
  for (const py::handle pair : pairs) {
    auto [name, size] = py::cast<std::pair<std::string, std::int64_t>>(pair);
    axes.push_back({std::move(name), size});
  }
  return axes;
}

std::vector<StridedAxis> to_strided_axes(
    const std::vector<std::pair<std::string, std::vector<std::pair<std::int64_t, std::int64_t>>>>&
        given) {
  std::vector<StridedAxis> axes;
  for (const auto& [name, strides] : given) {
    axes.push_back({name, {}});
    for (const auto& [size, step] : strides) axes.back().strides.push_back({size, step});
  }
  return axes;
}

LayoutOptions to_options(std::optional<std::size_t> dims, Order order, StridedMeans strided) {
  return {.dims = dims, .order = std::move(order), .strided = strided};
}

/// What every value of ours has: a text form, equality and, where given, a hash.
template <class T>
void define_text(py::class_<T>& type, const std::string& name) {
  type.def("to_string", &T::to_string)
      .def("__str__", &T::to_string)
      .def("__repr__", [name](const T& v) { return "<" + name + " " + v.to_string() + ">"; })
      .def(
          "__eq__", [](const T& a, const T& b) { return a == b; }, py::is_operator());
}

template <class T>
void define_hash(py::class_<T>& type) {
  type.def("hash", &T::hash).def("__hash__", &T::hash);
}

/// Values pickle as their text.
template <class T>
void define_pickle(py::class_<T>& type) {
  type.def(py::pickle([](const T& v) { return v.to_string(); },
                      [](const std::string& text) { return T::parse(text); }));
}

void bind_mesh(py::module_& m) {
  py::class_<Mesh> mesh(m, "Mesh", "Ranks arranged along named axes. Text form: [dp=2,tp=4].");
  copy_as_value(mesh);
  mesh.def(py::init<>())
      .def(py::init([](const py::object& axes, std::int64_t base) {
             return py::isinstance<py::str>(axes) ? Mesh::parse(py::cast<std::string>(axes))
                                                  : Mesh(to_axes(axes), base);
           }),
           "axes"_a, "base"_a = 0)
      .def_static(
          "strided",
          [](const std::vector<
                 std::pair<std::string, std::vector<std::pair<std::int64_t, std::int64_t>>>>& axes,
             std::int64_t base) { return Mesh::strided(to_strided_axes(axes), base); },
          "axes"_a, "base"_a = 0)
      .def_static(
          "of_ranks",
          [](const py::object& axes, const Sizes& ranks) {
            return Mesh::of_ranks(to_axes(axes), ranks);
          },
          "axes"_a, "ranks"_a)
      .def_static("parse", &Mesh::parse, "text"_a)
      .def("axes", &Mesh::axes)
      .def("size", [](const Mesh& self) { return self.size(); })
      .def(
          "size", [](const Mesh& self, std::size_t axis) { return self.size(axis); }, "axis"_a)
      .def(
          "size", [](const Mesh& self, std::string_view axis) { return self.size(axis); }, "axis"_a)
      .def("name", &Mesh::name, "axis"_a)
      .def("axis_index", &Mesh::axis_index, "name"_a)
      .def("has_axis", &Mesh::has_axis, "name"_a)
      .def("names", &Mesh::names)
      .def("base", &Mesh::base)
      .def("highest", &Mesh::highest)
      .def("has_table", &Mesh::has_table)
      .def("rank_at", &Mesh::rank_at, "at"_a)
      .def("coordinate_of", &Mesh::coordinate_of, "rank"_a)
      .def("contains", &Mesh::contains, "rank"_a)
      .def(
          "slice",
          [](const Mesh& self, const Names& names, std::int64_t member) {
            return self.slice(names, member);
          },
          "names"_a, "member"_a)
      .def("range", &Mesh::range, "axis"_a, "begin"_a, "end"_a)
      .def(
          "flatten",
          [](const Mesh& self, const Names& names, std::string_view as) {
            return self.flatten(names, as);
          },
          "names"_a, "as_"_a)
      .def(
          "split",
          [](const Mesh& self, std::string_view axis, const py::object& into) {
            return self.split(axis, to_axes(into));
          },
          "axis"_a, "into"_a)
      .def(
          "reorder", [](const Mesh& self, const Names& names) { return self.reorder(names); },
          "names"_a)
      .def(
          "permute",
          [](const Mesh& self, std::string_view axis, const Sizes& order) {
            return self.permute(axis, order);
          },
          "axis"_a, "order"_a)
      .def("parent", &Mesh::parent)
      .def("orphan", &Mesh::orphan);
  define_text(mesh, "Mesh");
  define_hash(mesh);
  define_pickle(mesh);
}

void bind_placement(py::module_& m) {
  py::native_enum<Reduction>(m, "Reduction", "enum.Enum")
      .value("sum", Reduction::sum)
      .value("avg", Reduction::avg)
      .value("min", Reduction::min)
      .value("max", Reduction::max)
      .value("product", Reduction::product)
      .value("bit_and", Reduction::bit_and)
      .value("bit_or", Reduction::bit_or)
      .value("bit_xor", Reduction::bit_xor)
      .value("norm", Reduction::norm)
      .finalize();

  py::class_<Placement> placement(
      m, "Placement", "What happens to a tensor along one mesh axis: R, S(d), SS(d,k) or P(op).");
  copy_as_value(placement);
  py::native_enum<Placement::Kind>(placement, "Kind", "enum.Enum")
      .value("replicate", Placement::Kind::replicate)
      .value("shard", Placement::Kind::shard)
      .value("strided_shard", Placement::Kind::strided_shard)
      .value("partial", Placement::Kind::partial)
      .finalize();
  placement.def(py::init<>())
      .def_static("replicate", &Placement::replicate)
      .def_static("shard", &Placement::shard, "dim"_a)
      .def_static("strided_shard", &Placement::strided_shard, "dim"_a, "split"_a)
      .def_static("partial", &Placement::partial,
                  py::arg_v("reduction", Reduction::sum, "Reduction.sum"))
      .def_static("partial_norm", &Placement::partial_norm, "p"_a)
      .def_static("parse", &Placement::parse, "text"_a)
      .def("kind", &Placement::kind)
      .def("is_replicate", &Placement::is_replicate)
      .def(
          "is_shard",
          [](const Placement& self, std::optional<int> dim) {
            return dim ? self.is_shard(*dim) : self.is_shard();
          },
          "dim"_a = py::none())
      .def("is_strided", &Placement::is_strided)
      .def("is_partial", &Placement::is_partial)
      .def("dim", &Placement::dim)
      .def("split", &Placement::split)
      .def("reduction", &Placement::reduction)
      .def("norm_order", &Placement::norm_order);
  define_text(placement, "Placement");
  define_hash(placement);
  define_pickle(placement);
}

void bind_layout_class(py::module_& m) {
  py::native_enum<StridedMeans>(m, "StridedMeans", "enum.Enum")
      .value("data", StridedMeans::data)
      .value("order", StridedMeans::order)
      .finalize();

  const auto strided = py::arg_v("strided", StridedMeans::data, "StridedMeans.data");
  py::class_<Layout> layout(m, "Layout", "How a tensor is laid out on a mesh: [dp=2,tp=4] S(0),R.");
  copy_as_value(layout);
  layout.def(py::init<>())
      .def(py::init([](const Mesh& mesh, const std::vector<Placement>& placements,
                       std::optional<std::size_t> dims, Order order, StridedMeans means) {
             return Layout(mesh, placements, to_options(dims, std::move(order), means));
           }),
           "mesh"_a, "placements"_a, py::kw_only(), "dims"_a = py::none(), "order"_a = Order{},
           strided)
      .def_static("replicated", &Layout::replicated, "mesh"_a)
      .def_static(
          "parse", [](std::string_view text) { return Layout::parse(text); }, "text"_a)
      .def_static(
          "parse",
          [](std::string_view text, const Mesh& mesh, std::optional<std::size_t> dims, Order order,
             StridedMeans means) {
            return Layout::parse(text, mesh, to_options(dims, std::move(order), means));
          },
          "text"_a, "mesh"_a, py::kw_only(), "dims"_a = py::none(), "order"_a = Order{}, strided)
      .def("mesh", &Layout::mesh)
      .def("placements", [](const Layout& self) { return to_tuple(self.placements()); })
      .def(
          "placement",
          [](const Layout& self, std::size_t axis) {
            if (axis >= self.mesh().axes()) {
              throw py::index_error("[placement] axis " + std::to_string(axis) + " of " +
                                    self.mesh().to_string());
            }
            return self.placement(axis);
          },
          "axis"_a)
      .def(
          "placement",
          [](const Layout& self, std::string_view axis) { return self.placement(axis); }, "axis"_a)
      .def("axes_of", &Layout::axes_of, "dim"_a)
      .def("sharding_axes", [](const Layout& self) { return to_tuple(self.sharding_axes()); })
      .def("has_default_order", &Layout::has_default_order)
      .def("is_replicated", &Layout::is_replicated)
      .def("has_partial", &Layout::has_partial)
      .def("has_strided", &Layout::has_strided)
      .def("least_dims", &Layout::least_dims)
      .def(
          "with_",
          [](const Layout& self, std::string_view axis, const Placement& placement) {
            return self.with(axis, placement);
          },
          "axis"_a, "placement"_a)
      .def("strided_spelling", &Layout::strided_spelling)
      .def("placements_text", &Layout::placements_text)
      .def_static("alive", &Layout::alive);
  define_text(layout, "Layout");
  define_hash(layout);
  define_pickle(layout);

  m.def(
      "order_of_strided",
      [](const Mesh& mesh, const std::vector<Placement>& placements) {
        return order_of_strided(mesh, placements);
      },
      "mesh"_a, "placements"_a);
}

void bind_boxes(py::module_& m) {
  py::class_<Range> range(m, "Range", "The indices begin <= i < end.");
  range
      .def(py::init([](std::int64_t begin, std::int64_t end) {
             return Range{begin, end};
           }),
           "begin"_a, "end"_a)
      .def_readonly("begin", &Range::begin)
      .def_readonly("end", &Range::end)
      .def("size", &Range::size);
  define_text(range, "Range");
  py::class_<Boxes> held(m, "Boxes", "The global index ranges that one rank holds.");
  held.def("dims", &Boxes::dims)
      .def(
          "runs",
          [](const Boxes& self, std::size_t dim) {
            if (dim >= self.dims())
              throw py::index_error("[runs] no dimension " + std::to_string(dim));
            return to_tuple(self.runs(dim));
          },
          "dim"_a)
      .def("local_shape", &Boxes::local_shape)
      .def("numel", &Boxes::numel)
      .def("offset", &Boxes::offset)
      .def("count", &Boxes::count)
      .def(
          "box",
          [](const Boxes& self, std::int64_t i) {
            if (i < 0 || i >= self.count())
              throw py::index_error("[box] no box " + std::to_string(i));
            return self.box(i);
          },
          "i"_a);
  define_text(held, "Boxes");
  m.def(
      "boxes",
      [](const Layout& layout, const Sizes& shape, const Coordinate& at) {
        return boxes(layout, shape, at);
      },
      "layout"_a, "shape"_a, "at"_a);
  m.def(
      "local_shape",
      [](const Layout& layout, const Sizes& shape, const Coordinate& at) {
        return local_shape(layout, shape, at);
      },
      "layout"_a, "shape"_a, "at"_a);
  m.def(
      "lengths_along",
      [](const Layout& layout, const Sizes& shape, int dim, const Names& axes,
         const Coordinate& at) { return lengths_along(layout, shape, dim, axes, at); },
      "layout"_a, "shape"_a, "dim"_a, "axes"_a, "at"_a);
}

void bind_tensor_type(py::module_& m) {
  py::native_enum<DType>(m, "DType", "enum.Enum")
      .value("b1", DType::b1)
      .value("u8", DType::u8)
      .value("u16", DType::u16)
      .value("u32", DType::u32)
      .value("u64", DType::u64)
      .value("i8", DType::i8)
      .value("i16", DType::i16)
      .value("i32", DType::i32)
      .value("i64", DType::i64)
      .value("f8e4m3", DType::f8e4m3)
      .value("f8e5m2", DType::f8e5m2)
      .value("f16", DType::f16)
      .value("bf16", DType::bf16)
      .value("f32", DType::f32)
      .value("f64", DType::f64)
      .value("c32", DType::c32)
      .value("c64", DType::c64)
      .value("c128", DType::c128)
      .finalize();
  const auto read_format = [](const std::string& format) {
    if (format == "text") return PictureFormat::text;
    if (format == "svg") return PictureFormat::svg;
    if (format == "html") return PictureFormat::html;
    throw ValueError("[picture] the format is text, svg or html, not '" + format + "'");
  };
  py::class_<TensorType> type(m, "TensorType",
                              "What a distributed tensor is: f32[1024@dp, 4096@tp].");
  type.def(py::init([](DType dtype, const Shape& shape, const Layout& layout) {
             TensorType made{dtype, shape, layout};
             check(made);
             return made;
           }),
           "dtype"_a, "shape"_a, "layout"_a)
      .def_static("parse", &TensorType::parse, "text"_a, "mesh"_a)
      .def_readonly("dtype", &TensorType::dtype)
      .def_readonly("shape", &TensorType::shape)
      .def_readonly("layout", &TensorType::layout)
      .def(
          "picture",
          [read_format](const TensorType& t, const std::string& format) {
            return picture(t, read_format(format));
          },
          "format"_a = "text", "Which rank holds what, as text, svg or html.")
      .def("_repr_html_", [](const TensorType& t) { return picture(t, PictureFormat::html); });
  define_text(type, "TensorType");
}

}  // namespace

void bind_layout(py::module_& m) {
  bind_mesh(m);
  bind_placement(m);
  bind_layout_class(m);
  bind_boxes(m);
  bind_tensor_type(m);
}

}  // namespace intarsia
