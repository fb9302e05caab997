// The prover.
#include "intarsia/prove.h"

#include "bind.h"

using namespace pybind11::literals;

namespace intarsia {

void bind_prove(py::module_& m) {
  py::class_<CounterExample>(m, "CounterExample",
                             "A call whose result differs from the op on full tensors.")
      .def_readonly("call", &CounterExample::call)
      .def_readonly("difference", &CounterExample::difference)
      .def("__repr__",
           [](const CounterExample& e) { return "<" + e.call + ": " + e.difference + ">"; });
  py::class_<MissingRow>(m, "MissingRow", "A row that a rule could have.")
      .def_readonly("row", &MissingRow::row)
      .def_readonly("sample", &MissingRow::sample)
      .def("__repr__", [](const MissingRow& r) { return "<" + r.row + " in " + r.sample + ">"; });
  py::class_<Proof>(m, "Proof", "What the prover found about the rule of an op.")
      .def_readonly("op", &Proof::op)
      .def_readonly("samples", &Proof::samples)
      .def_readonly("cases", &Proof::cases)
      .def_readonly("gradients", &Proof::gradients)
      .def_readonly("wrong", &Proof::wrong)
      .def_readonly("missing", &Proof::missing)
      .def("holds", &Proof::holds)
      .def("to_string", &Proof::to_string)
      .def("__str__", &Proof::to_string)
      .def("__repr__", [](const Proof& p) {
        return "<Proof of " + p.op + (p.holds() ? ": holds>" : ": WRONG>");
      });
  py::class_<ProofOptions>(m, "ProofOptions", "How much is tried.")
      .def(py::init<>())
      .def_readwrite("ranks", &ProofOptions::ranks)
      .def_readwrite("combinations", &ProofOptions::combinations)
      .def_readwrite("sampled", &ProofOptions::sampled)
      .def_readwrite("backward", &ProofOptions::backward)
      .def_readwrite("variants", &ProofOptions::variants)
      .def_readwrite("missing", &ProofOptions::missing)
      .def_readwrite("samples", &ProofOptions::samples)
      .def_readwrite("seed", &ProofOptions::seed)
      .def_readwrite("counter_examples", &ProofOptions::counter_examples);
  m.def("provable_ops", &provable_ops, WithoutGil());
  m.def("prove", &prove, "op"_a, "options"_a, WithoutGil());
  m.def("prove_samples", &prove_samples, "samples"_a, "options"_a, WithoutGil());
  m.def("prove_case", &prove_case, "call"_a, "options"_a, WithoutGil());
}

}  // namespace intarsia
