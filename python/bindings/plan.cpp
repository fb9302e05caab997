// Plans between layouts.
#include <pybind11/native_enum.h>

#include "bind.h"
#include "intarsia/plan.h"

using namespace pybind11::literals;

namespace intarsia {

void bind_plan(py::module_& m) {
  py::native_enum<StepKind> kind(m, "StepKind", "enum.Enum");
  for (int i = 0; i <= static_cast<int>(StepKind::all_reduce); ++i) {
    const auto value = static_cast<StepKind>(i);
    kind.value(std::string(to_text(value)).c_str(), value);
  }
  kind.finalize();
  py::class_<Step>(m, "Step", "A change of the placement on one mesh axis.")
      .def_readonly("kind", &Step::kind)
      .def_readonly("axis", &Step::axis)
      .def_readonly("before", &Step::before)
      .def_readonly("after", &Step::after)
      .def("from_", &Step::from)
      .def("to", &Step::to)
      .def("to_string", &Step::to_string)
      .def("__str__", &Step::to_string)
      .def("__repr__", [](const Step& s) { return "<Step " + s.to_string() + ">"; })
      .def(
          "__eq__", [](const Step& a, const Step& b) { return a == b; }, py::is_operator());
  py::class_<Plan>(m, "Plan", "Steps that lead from one layout to another.")
      .def_readonly("from_", &Plan::from)
      .def_readonly("to", &Plan::to)
      .def_property_readonly("steps", [](const Plan& self) { return to_tuple(self.steps); })
      .def("collectives", &Plan::collectives)
      .def("to_string", &Plan::to_string)
      .def("__str__", &Plan::to_string)
      .def("__repr__", [](const Plan& p) { return "<Plan " + p.to_string() + ">"; })
      .def(
          "__eq__", [](const Plan& a, const Plan& b) { return a == b; }, py::is_operator());
  m.def("make_plan", &make_plan, "from_"_a, "to"_a);
}

}  // namespace intarsia
