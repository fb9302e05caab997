// Checkpoints.
#include "intarsia/checkpoint.h"

#include <torch/csrc/utils/pybind.h>

#include "bind.h"

using namespace pybind11::literals;

namespace intarsia {

void bind_checkpoint(py::module_& m) {
  py::class_<CheckpointContents>(m, "CheckpointContents")
      .def_readonly("step", &CheckpointContents::step)
      .def_readonly("tensors", &CheckpointContents::tensors)
      .def_readonly("values", &CheckpointContents::values);
  m.def(
      "save_checkpoint",
      [](World& world, const std::string& folder, std::int64_t step, const NamedTensors& tensors,
         const CheckpointValues& values, bool replace, bool check_replicas) {
        save_checkpoint(world, folder, step, tensors, values,
                        {.replace = replace, .check_replicas = check_replicas});
      },
      "world"_a, "folder"_a, "step"_a, "tensors"_a, "values"_a, "replace"_a = false,
      "check_replicas"_a = true, WithoutGil());
  m.def(
      "load_checkpoint",
      [](World& world, const std::string& folder, const NamedTensors& tensors,
         std::optional<std::int64_t> step, bool verify, bool strict) {
        return load_checkpoint(world, folder, tensors,
                               {.step = step, .verify = verify, .strict = strict});
      },
      "world"_a, "folder"_a, "tensors"_a, "step"_a = py::none(), "verify"_a = true,
      "strict"_a = true, WithoutGil());
  m.def("newest_checkpoint", &newest_checkpoint, "world"_a, "folder"_a, WithoutGil());
  m.def("read_checkpoint", &read_checkpoint, "folder"_a, "step"_a = py::none(), WithoutGil());
  m.def("checkpoint_steps", &checkpoint_steps, "folder"_a, WithoutGil());
}

}  // namespace intarsia
