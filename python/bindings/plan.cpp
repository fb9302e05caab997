// Plans between layouts.
#include <pybind11/native_enum.h>

#include "bind.h"
#include "intarsia/between.h"
#include "intarsia/plan.h"
#include "intarsia/world.h"

using namespace pybind11::literals;

namespace intarsia {

void bind_plan(py::module_& m) {
  py::native_enum<StepKind> kind(m, "StepKind", "enum.Enum");
  for (int i = 0; i <= static_cast<int>(StepKind::permute); ++i) {
    const auto value = static_cast<StepKind>(i);
    kind.value(std::string(to_text(value)).c_str(), value);
  }
  kind.finalize();
  py::class_<Step>(m, "Step", "A change of placements, by one collective or none.")
      .def_readonly("kind", &Step::kind)
      .def_property_readonly("axes",
                             [](const Step& s) {
                               std::vector<std::string> names;
                               for (const std::int8_t a : s.axes) {
                                 names.push_back(s.before.mesh().name(static_cast<std::size_t>(a)));
                               }
                               return to_tuple(names);
                             })
      .def_readonly("before", &Step::before)
      .def_readonly("after", &Step::after)
      .def_readonly("chunks", &Step::chunks)
      .def_readonly("seconds", &Step::seconds)
      .def("communicates", &Step::communicates)
      .def("to_string", &Step::to_string)
      .def("__str__", &Step::to_string)
      .def("__repr__", [](const Step& s) { return "<Step " + s.to_string() + ">"; })
      .def(
          "__eq__", [](const Step& a, const Step& b) { return a == b; }, py::is_operator());
  py::class_<Plan>(m, "Plan", "Steps that lead from one layout to another.")
      .def_readonly("from_", &Plan::from)
      .def_readonly("to", &Plan::to)
      .def_property_readonly("steps", [](const Plan& self) { return to_tuple(self.steps); })
      .def_property_readonly("shape", [](const Plan& self) { return to_tuple(self.shape); })
      .def_readonly("element_size", &Plan::element_size)
      .def_readonly("seconds", &Plan::seconds)
      .def_readonly("peak_bytes", &Plan::peak_bytes)
      .def("collectives", &Plan::collectives)
      .def("to_string", &Plan::to_string)
      .def("__str__", &Plan::to_string)
      .def("__repr__", [](const Plan& p) { return "<Plan " + p.to_string() + ">"; })
      .def(
          "__eq__", [](const Plan& a, const Plan& b) { return a == b; }, py::is_operator());
  py::class_<Traffic>(m, "Traffic", "What a plan moves, counted exactly from boxes.")
      .def_readonly("received", &Traffic::received)
      .def_readonly("received_by_all", &Traffic::received_by_all)
      .def_readonly("missing", &Traffic::missing)
      .def_readonly("missing_by_all", &Traffic::missing_by_all);
  py::class_<Topology>(m, "Topology", "What moving data between the ranks of a job costs.")
      .def(py::init(&Topology::standard))
      .def_static("parse", &Topology::parse, "json"_a)
      .def_static("load", &Topology::load, "path"_a)
      .def("to_json", &Topology::to_json)
      .def(
          "__eq__", [](const Topology& a, const Topology& b) { return a == b; }, py::is_operator());
  m.def(
      "traffic_between",
      [](const Layout& from, const Layout& to, const std::vector<std::int64_t>& shape,
         std::int64_t element_size) { return traffic_between(from, to, shape, element_size); },
      "from_"_a, "to"_a, "shape"_a, "element_size"_a = 4);
  m.def(
      "relabelled",
      [](const Layout& from, const Layout& to, const std::vector<std::int64_t>& shape) {
        return relabelled(from, to, shape);
      },
      "from_"_a, "to"_a, "shape"_a);
  m.def(
      "set_topology", [](World& world, const Topology& topology) { world.set_topology(topology); },
      "world"_a, "topology"_a);
  m.def(
      "topology", [](World& world) { return world.plans().topology(); }, "world"_a);
  m.def("traffic", py::overload_cast<const Plan&>(&traffic), "plan"_a);
  m.def(
      "make_plan",
      [](const Layout& from, const Layout& to, const std::vector<std::int64_t>& shape,
         std::int64_t element_size, const Topology* topology,
         std::optional<std::int64_t> peak_bytes) {
        return make_plan(from, to, shape, {element_size, topology, peak_bytes});
      },
      "from_"_a, "to"_a, "shape"_a, "element_size"_a, "topology"_a, "peak_bytes"_a);
}

}  // namespace intarsia
