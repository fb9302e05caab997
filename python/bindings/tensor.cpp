// Distributed tensors: making, moving and taking them apart.
#include <pybind11/complex.h>
#include <torch/csrc/utils/pybind.h>

#include <complex>
#include <variant>

#include "bind.h"
#include "intarsia/redistribute.h"
#include "intarsia/replicas.h"
#include "intarsia/tensor.h"

using namespace pybind11::literals;

namespace intarsia {
namespace {

using Sizes = std::vector<std::int64_t>;
using Tensors = std::vector<at::Tensor>;
using WorldPtr = std::shared_ptr<World>;
using MaybeDType = std::optional<at::ScalarType>;

at::TensorOptions to_options(const MaybeDType& dtype, bool requires_grad) {
  auto options = at::TensorOptions().requires_grad(requires_grad);
  return dtype ? options.dtype(*dtype) : options;
}

/// A number of Python: torch's caster cannot read at::Scalar.
using Number = std::variant<bool, std::int64_t, double, std::complex<double>>;

at::Scalar to_scalar(const Number& number) {
  if (const auto* value = std::get_if<std::complex<double>>(&number)) {
    return c10::complex<double>(*value);
  }
  if (const auto* value = std::get_if<double>(&number)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&number)) return *value;
  return std::get<bool>(number);
}

/// The C++ body that calls a Python one. It runs without the GIL, and takes it for the call.
auto call_python(const py::function& body) {
  return [&body](const Tensors& pieces) {
    const py::gil_scoped_acquire gil;
    return py::cast<Tensors>(body(*to_tuple(pieces)));
  };
}

void bind_questions(py::module_& m) {
  m.def("has_layout", &has_layout, "tensor"_a);
  m.def("layout_of", &layout_of, "tensor"_a, WithoutGil());
  m.def(
      "world_of", [](const at::Tensor& t) { return world_of(t).shared_from_this(); }, "tensor"_a);
  m.def("describe", &describe, "tensor"_a, WithoutGil());
  m.def("show", &show, "tensor"_a, WithoutGil());
  m.def("keep_gradient_layout", &keep_gradient_layout, "tensor"_a);
}

void bind_moves(py::module_& m) {
  m.def(
      "distribute",
      [](const at::Tensor& full, const Layout& layout, const WorldPtr& world) {
        return distribute(full, layout, *world);
      },
      "full"_a, "layout"_a, "world"_a, WithoutGil());
  m.def(
      "from_local",
      [](const at::Tensor& piece, const Layout& layout, const WorldPtr& world,
         const std::optional<Sizes>& shape, const std::optional<Layout>& grad_layout,
         const std::optional<Sizes>& strides) {
        return from_local(piece, layout, *world,
                          {.shape = shape, .strides = strides, .grad_layout = grad_layout});
      },
      "piece"_a, "layout"_a, "world"_a, "shape"_a = py::none(), "grad_layout"_a = py::none(),
      "strides"_a = py::none(), WithoutGil());
  m.def(
      "from_locals",
      [](const Tensors& pieces, const Layout& layout, const WorldPtr& world,
         const std::optional<Sizes>& shape, const std::optional<Layout>& grad_layout,
         const std::optional<Sizes>& strides) {
        return from_locals(pieces, layout, *world,
                           {.shape = shape, .strides = strides, .grad_layout = grad_layout});
      },
      "pieces"_a, "layout"_a, "world"_a, "shape"_a = py::none(), "grad_layout"_a = py::none(),
      "strides"_a = py::none(), WithoutGil());
  m.def("local", &local, "tensor"_a, "grad_layout"_a = py::none(), WithoutGil());
  m.def("locals", &locals, "tensor"_a, "grad_layout"_a = py::none(), WithoutGil());
  m.def("full", &full, "tensor"_a, "grad_layout"_a = py::none(), WithoutGil());
  m.def("redistribute", &redistribute, "tensor"_a, "layout"_a, WithoutGil());
  py::class_<MovingTensor>(m, "MovingTensor", "A tensor on its way to another layout.")
      .def("wait", &MovingTensor::wait, WithoutGil(),
           "The tensor in its new layout, outside autograd.")
      .def("done", &MovingTensor::done);
  m.def(
      "start_redistribute",
      [](const at::Tensor& tensor, const Layout& layout, bool source_stays) {
        return start_redistribute(tensor, layout, {.source_stays = source_stays});
      },
      "tensor"_a, "layout"_a, "source_stays"_a = false, WithoutGil());
  m.def("redistribute_together", &redistribute_together, "tensors"_a, "layouts"_a, WithoutGil());
  m.def("redistribute_between",
        py::overload_cast<const at::Tensor&, const Layout&>(&redistribute_between), "tensor"_a,
        "layout"_a, WithoutGil());
  m.def("redistribute_between",
        py::overload_cast<const Tensors&, const std::vector<Layout>&>(&redistribute_between),
        "tensors"_a, "layouts"_a, WithoutGil());
  m.def("explain", &explain, "tensor"_a, "layout"_a);
  m.def("assert_replicas", py::overload_cast<const NamedTensors&>(&assert_replicas), "tensors"_a,
        WithoutGil());
  m.def(
      "local_region",
      [](const py::function& body, const Tensors& inputs, const std::vector<Layout>& in,
         const std::vector<Layout>& out, const std::vector<std::optional<Layout>>& grads,
         const std::vector<std::optional<Sizes>>& shapes) {
        const RegionLayouts region{.in = in, .out = out, .grads = grads, .shapes = shapes};
        const auto call = call_python(body);
        const py::gil_scoped_release without_gil;
        return local_region(call, inputs, region);
      },
      "body"_a, "inputs"_a, "in_"_a, "out"_a, "grads"_a = py::list(), "shapes"_a = py::list());
}

/// Factories of one form: sizes, layout, world, options.
template <class Make>
void bind_factory(py::module_& m, const char* name, const Make& make) {
  m.def(
      name,
      [make](const Sizes& sizes, const Layout& layout, const WorldPtr& world,
             const MaybeDType& dtype, bool requires_grad) {
        return make(sizes, layout, *world, to_options(dtype, requires_grad));
      },
      "sizes"_a, "layout"_a, "world"_a, "dtype"_a = py::none(), "requires_grad"_a = false,
      WithoutGil());
}

void bind_factories(py::module_& m) {
  bind_factory(m, "zeros", &zeros);
  bind_factory(m, "ones", &ones);
  bind_factory(m, "empty", &empty);
  bind_factory(m, "rand", &rand);
  bind_factory(m, "randn", &randn);
  m.def(
      "full_of",
      [](const Sizes& sizes, const Number& value, const Layout& layout, const WorldPtr& world,
         const MaybeDType& dtype, bool requires_grad) {
        return full_of(sizes, to_scalar(value), layout, *world, to_options(dtype, requires_grad));
      },
      "sizes"_a, "value"_a, "layout"_a, "world"_a, "dtype"_a = py::none(),
      "requires_grad"_a = false, WithoutGil());
  m.def(
      "arange",
      [](const Number& start, const Number& end, const Number& step, const Layout& layout,
         const WorldPtr& world, const MaybeDType& dtype, bool requires_grad) {
        return arange(to_scalar(start), to_scalar(end), to_scalar(step), layout, *world,
                      to_options(dtype, requires_grad));
      },
      "start"_a, "end"_a, "step"_a, "layout"_a, "world"_a, "dtype"_a = py::none(),
      "requires_grad"_a = false, WithoutGil());
  m.def(
      "randint",
      [](std::int64_t low, std::int64_t high, const Sizes& sizes, const Layout& layout,
         const WorldPtr& world, const MaybeDType& dtype, bool requires_grad) {
        return randint(low, high, sizes, layout, *world, to_options(dtype, requires_grad));
      },
      "low"_a, "high"_a, "sizes"_a, "layout"_a, "world"_a, "dtype"_a = py::none(),
      "requires_grad"_a = false, WithoutGil());
  m.def(
      "randperm",
      [](std::int64_t n, const Layout& layout, const WorldPtr& world, const MaybeDType& dtype,
         bool requires_grad) {
        return randperm(n, layout, *world, to_options(dtype, requires_grad));
      },
      "n"_a, "layout"_a, "world"_a, "dtype"_a = py::none(), "requires_grad"_a = false,
      WithoutGil());
}

}  // namespace

void bind_tensor(py::module_& m) {
  bind_questions(m);
  bind_moves(m);
  bind_factories(m);
}

}  // namespace intarsia
