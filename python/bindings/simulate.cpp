// Simulated worlds, predictions, and the meter of memory.
#include <torch/csrc/utils/pybind.h>

#include "bind.h"
#include "intarsia/error.h"
#include "intarsia/memory.h"
#include "intarsia/predict.h"
#include "intarsia/simulate.h"
#include "intarsia/step_time.h"

using namespace pybind11::literals;

namespace intarsia {
namespace {

/// What the meter of Python counts: the CPU, with the meta device where asked.
std::unique_ptr<MemoryMeter> make_meter(const std::string& device) {
  if (device == "cpu") return std::make_unique<MemoryMeter>();
  if (device == "meta") {
    return std::make_unique<MemoryMeter>(std::initializer_list{c10::DeviceType::Meta});
  }
  throw ValueError("[MemoryMeter] cannot count memory of '" + device +
                   "'; cpu and meta can be counted, and accelerators count by themselves");
}

Prediction predict_from_python(const Mesh& mesh, std::int64_t rank, const std::string& backend,
                               const py::function& program) {
  using Tensors = std::vector<at::Tensor>;
  return predict({.mesh = mesh, .rank = rank, .backend = backend}, [&](World& world) {
    auto [parameters, optimizer, step] =
        program(world.shared_from_this()).cast<std::tuple<Tensors, Tensors, py::object>>();
    KeptTensors kept{.parameters = std::move(parameters), .optimizer = std::move(optimizer)};
    if (!step.is_none()) kept.step = [step = std::move(step)] { step(); };
    return kept;
  });
}

}  // namespace

void bind_simulate(py::module_& m) {
  const auto backend = py::arg_v("backend", std::string("gloo"), "'gloo'");
  m.def(
      "simulate",
      [](std::int64_t size, std::int64_t rank, const std::string& b, std::size_t entries) {
        return simulate({.size = size, .rank = rank, .backend = b, .ledger_entries = entries});
      },
      "size"_a, py::kw_only(), "rank"_a = 0, backend,
      py::arg_v("ledger_entries", std::size_t{4096}, "4096"));
  py::class_<MemoryMeter>(m, "MemoryMeter", "Counts the bytes of tensors' memory in this process.")
      .def(py::init(&make_meter), "device"_a = "cpu")
      .def("live", &MemoryMeter::live)
      .def("peak", &MemoryMeter::peak)
      .def("reset", &MemoryMeter::reset);
  py::class_<StepCosts>(m, "StepCosts", "What computing and communicating costs a rank.")
      .def(py::init<>())
      .def_static("load", &StepCosts::load, "path"_a)
      .def_static("parse", &StepCosts::parse, "json"_a)
      .def("to_json", &StepCosts::to_json);
  py::class_<StepTime>(m, "StepTime", "A step on a clock, in seconds.")
      .def_readonly("total", &StepTime::total)
      .def_readonly("computes", &StepTime::computes)
      .def_readonly("waits", &StepTime::waits)
      .def_readonly("sends", &StepTime::sends)
      .def_property_readonly("parts",
                             [](const StepTime& t) {
                               py::list out;
                               for (const StepTime::Part& p : t.parts) {
                                 out.append(py::make_tuple(p.name, p.sends, p.begin, p.end));
                               }
                               return out;
                             })
      .def("to_string", &StepTime::to_string)
      .def("to_trace", &StepTime::to_trace)
      .def("__str__", &StepTime::to_string)
      .def("__repr__", [](const StepTime& t) { return "<StepTime " + t.to_string() + ">"; });
  py::class_<Prediction>(m, "Prediction", "What a training step takes on one rank, in bytes.")
      .def_readonly("mesh", &Prediction::mesh)
      .def_readonly("rank", &Prediction::rank)
      .def_readonly("parameters", &Prediction::parameters)
      .def_readonly("gradients", &Prediction::gradients)
      .def_readonly("optimizer", &Prediction::optimizer)
      .def_readonly("peak", &Prediction::peak)
      .def_readonly("bill", &Prediction::bill)
      .def("activations", &Prediction::activations)
      .def("schedule", &Prediction::schedule)
      .def("time", &Prediction::time, "costs"_a)
      .def("to_string", &Prediction::to_string)
      .def("__str__", &Prediction::to_string)
      .def("__repr__", [](const Prediction& p) { return "<Prediction " + p.to_string() + ">"; });
  m.def("predict", &predict_from_python, "mesh"_a, "rank"_a, "backend"_a, "program"_a);
  m.def("held_bytes", &held_bytes, "tensors"_a);
}

}  // namespace intarsia
