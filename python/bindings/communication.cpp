// What distributed tensors sent on their own, and how to limit it.
#include <pybind11/native_enum.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>

#include "bind.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"

using namespace pybind11::literals;

namespace intarsia {
namespace {

using WorldPtr = std::shared_ptr<World>;

/// ModuleScope with Python's beginning and end.
class PythonModuleScope {
 public:
  explicit PythonModuleScope(std::string name) : name_(std::move(name)) {}
  void enter() {
    if (scope_)
      throw ValueError("[ModuleScope] " + name_ + " is entered already; make another one");
    scope_ = std::make_unique<ModuleScope>(name_);
  }
  void exit() { scope_.reset(); }

 private:
  std::string name_;
  std::unique_ptr<ModuleScope> scope_;
};

void bind_bill(py::module_& m) {
  py::class_<BillEntry>(m, "BillEntry", "Moves of one kind that happened.")
      .def_readonly("op", &BillEntry::op)
      .def_readonly("tensor", &BillEntry::tensor)
      .def_readonly("module", &BillEntry::module)
      .def_readonly("axis", &BillEntry::axis)
      .def_readonly("transition", &BillEntry::transition)
      .def_readonly("implicit", &BillEntry::implicit)
      .def_readonly("backward", &BillEntry::backward)
      .def_readonly("fallback", &BillEntry::fallback)
      .def_readonly("count", &BillEntry::count)
      .def_readonly("bytes", &BillEntry::bytes)
      .def_readonly("calls", &BillEntry::calls);
  py::class_<Bill>(m, "Bill", "What was sent since the bill was last cleared.")
      .def_readonly("entries", &Bill::entries)
      .def("count", &Bill::count)
      .def("bytes", &Bill::bytes)
      .def("calls", &Bill::calls)
      .def("transitions", &Bill::transitions)
      .def("to_string", &Bill::to_string)
      .def("to_json", &Bill::to_json)
      .def("to_html", &Bill::to_html, "title"_a = "Bill")
      .def("_repr_html_", [](const Bill& b) { return b.to_html(); })
      .def("__str__", &Bill::to_string)
      .def("__repr__", [](const Bill& b) { return "<Bill " + b.transitions() + ">"; });
  m.def(
      "bill", [](const WorldPtr& world) { return bill(*world); }, "world"_a);
  m.def(
      "clear_bill", [](const WorldPtr& world) { clear_bill(*world); }, "world"_a);
  py::class_<Budget>(m, "Budget", "Counts what is sent from its making on.")
      .def(py::init([](const WorldPtr& world) { return std::make_unique<Budget>(*world); }),
           "world"_a, py::keep_alive<1, 2>())
      .def("spent", &Budget::spent)
      .def("expect", &Budget::expect, "transitions"_a);
}

void bind_cache(py::module_& m) {
  py::class_<CacheCounters>(m, "CacheCounters", "The cache of decisions.")
      .def_readonly("entries", &CacheCounters::entries)
      .def_readonly("limit", &CacheCounters::limit)
      .def_readonly("hits", &CacheCounters::hits)
      .def_readonly("misses", &CacheCounters::misses)
      .def_readonly("evictions", &CacheCounters::evictions);
  m.def(
      "cache_counters", [](const WorldPtr& world) { return cache_counters(*world); }, "world"_a);
  m.def(
      "clear_cache", [](const WorldPtr& world) { clear_cache(*world); }, "world"_a);
  m.def(
      "set_cache_limit",
      [](const WorldPtr& world, std::size_t entries) { set_cache_limit(*world, entries); },
      "world"_a, "entries"_a);
}

}  // namespace

void bind_communication(py::module_& m) {
  py::native_enum<Communication>(m, "Communication", "enum.Enum")
      .value("automatic", Communication::automatic)
      .value("warn", Communication::warn)
      .value("explicit_only", Communication::explicit_only)
      .finalize();
  m.def(
      "communication", [](const WorldPtr& world) { return communication(*world); }, "world"_a);
  m.def(
      "set_communication",
      [](const WorldPtr& world, Communication mode) { set_communication(*world, mode); }, "world"_a,
      "mode"_a);
  py::native_enum<PlainTensors>(m, "PlainTensors", "enum.Enum")
      .value("recorded", PlainTensors::recorded)
      .value("checked", PlainTensors::checked)
      .value("refused", PlainTensors::refused)
      .finalize();
  m.def(
      "plain_tensors", [](const WorldPtr& world) { return plain_tensors(*world); }, "world"_a);
  m.def(
      "set_plain_tensors",
      [](const WorldPtr& world, PlainTensors mode) { set_plain_tensors(*world, mode); }, "world"_a,
      "mode"_a);
  m.def(
      "check_plain_tensors", [](const WorldPtr& world) { check_plain_tensors(*world); }, "world"_a,
      py::call_guard<py::gil_scoped_release>());
  py::class_<PythonModuleScope>(m, "ModuleScope",
                                "Names what is computed inside, for bill and ledger.")
      .def(py::init<std::string>(), "name"_a)
      .def(
          "__enter__",
          [](PythonModuleScope& self) -> PythonModuleScope& {
            self.enter();
            return self;
          },
          py::return_value_policy::reference_internal)
      .def("__exit__", [](PythonModuleScope& self, const py::args&) { self.exit(); });
  bind_bill(m);
  bind_cache(m);
}

}  // namespace intarsia
