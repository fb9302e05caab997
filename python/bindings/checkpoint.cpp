// Checkpoints.
#include "intarsia/checkpoint.h"

#include <pybind11/functional.h>
#include <pybind11/native_enum.h>
#include <torch/csrc/utils/pybind.h>

#include "bind.h"
#include "intarsia/checkpoint_manager.h"

using namespace pybind11::literals;

namespace intarsia {

namespace {

/// Python names the form and the files' length by one number, or None.
CheckpointForm form_of(std::optional<std::uint64_t> hf_file_bytes) {
  return hf_file_bytes ? CheckpointForm::hf : CheckpointForm::native;
}

void bind_manager(py::module_& m) {
  py::native_enum<SaveMode>(m, "SaveMode", "enum.Enum")
      .value("wait", SaveMode::wait)
      .value("behind", SaveMode::behind)
      .value("overlapped", SaveMode::overlapped)
      .finalize();
  py::class_<CheckpointTimes>(m, "CheckpointTimes")
      .def_readonly("staging", &CheckpointTimes::staging)
      .def_readonly("waiting", &CheckpointTimes::waiting)
      .def_readonly("writing", &CheckpointTimes::writing)
      .def_readonly("removing", &CheckpointTimes::removing)
      .def_readonly("saves", &CheckpointTimes::saves)
      .def_readonly("failures", &CheckpointTimes::failures);
  py::class_<CheckpointManager>(m, "CheckpointManager")
      .def(
          py::init([](std::shared_ptr<World> world, const std::string& folder, std::int64_t every,
                      bool first, std::int64_t keep, SaveMode mode, const std::string& also,
                      bool replace, bool check_replicas, std::optional<std::uint64_t> hf_file_bytes,
                      std::optional<at::ScalarType> hf_dtype, bool stop_on_failure,
                      bool heed_requests) {
            return std::make_unique<CheckpointManager>(
                std::move(world), folder,
                CheckpointManagerOptions{.every = every,
                                         .first = first,
                                         .keep = keep,
                                         .mode = mode,
                                         .also = also,
                                         .replace = replace,
                                         .check_replicas = check_replicas,
                                         .form = form_of(hf_file_bytes),
                                         .hf_file_bytes = hf_file_bytes.value_or(1),
                                         .hf_dtype = hf_dtype,
                                         .stop_on_failure = stop_on_failure,
                                         .heed_requests = heed_requests});
          }),
          "world"_a, "folder"_a, "every"_a, "first"_a, "keep"_a, "mode"_a, "also"_a, "replace"_a,
          "check_replicas"_a, "hf_file_bytes"_a, "hf_dtype"_a, "stop_on_failure"_a,
          "heed_requests"_a)
      .def("due", &CheckpointManager::due, "step"_a, WithoutGil())
      .def("save", &CheckpointManager::save, "step"_a, "tensors"_a, "values"_a, WithoutGil())
      .def("wait_staged", &CheckpointManager::wait_staged, WithoutGil())
      .def("wait", &CheckpointManager::wait, WithoutGil())
      .def("request_stop", &CheckpointManager::request_stop)
      .def("stop_requested", &CheckpointManager::stop_requested)
      .def("busy", &CheckpointManager::busy)
      .def("last_step", &CheckpointManager::last_step)
      .def("times", &CheckpointManager::times);
}

}  // namespace

void bind_checkpoint(py::module_& m) {
  py::class_<CheckpointContents>(m, "CheckpointContents")
      .def_readonly("step", &CheckpointContents::step)
      .def_readonly("tensors", &CheckpointContents::tensors)
      .def_readonly("values", &CheckpointContents::values);
  m.def(
      "save_checkpoint",
      [](World& world, const std::string& folder, std::int64_t step, const NamedTensors& tensors,
         const CheckpointValues& values, bool replace, bool check_replicas,
         std::optional<std::uint64_t> hf_file_bytes, std::optional<at::ScalarType> hf_dtype) {
        save_checkpoint(world, folder, step, tensors, values,
                        {.replace = replace,
                         .check_replicas = check_replicas,
                         .form = form_of(hf_file_bytes),
                         .hf_file_bytes = hf_file_bytes.value_or(1),
                         .hf_dtype = hf_dtype});
      },
      "world"_a, "folder"_a, "step"_a, "tensors"_a, "values"_a, "replace"_a = false,
      "check_replicas"_a = true, "hf_file_bytes"_a = py::none(), "hf_dtype"_a = py::none(),
      WithoutGil());
  m.def(
      "load_checkpoint",
      [](World& world, const std::string& folder, const TensorsFor& into,
         std::optional<std::int64_t> step, bool verify, bool strict, bool convert, bool fall_back,
         const std::string& names, const std::vector<std::string>& only,
         const std::vector<std::string>& without) {
        return load_checkpoint(world, folder, into,
                               {.step = step,
                                .verify = verify,
                                .strict = strict,
                                .convert = convert,
                                .names = names,
                                .only = only,
                                .without = without,
                                .fall_back = fall_back});
      },
      "world"_a, "folder"_a, "into"_a, "step"_a = py::none(), "verify"_a = true, "strict"_a = true,
      "convert"_a = false, "fall_back"_a = false, "names"_a = "",
      "only"_a = std::vector<std::string>(), "without"_a = std::vector<std::string>(),
      WithoutGil());
  m.def("with_names", &with_names, "contents"_a, "names"_a);
  m.def("any_checkpoint", &any_checkpoint, "world"_a, "folder"_a, WithoutGil());
  m.def(
      "load_hugging_face",
      [](World& world, const std::string& folder, const NamedTensors& tensors, bool strict,
         bool convert, const std::string& names, const std::vector<std::string>& only,
         const std::vector<std::string>& without) {
        return load_hugging_face(world, folder, tensors,
                                 {.strict = strict,
                                  .convert = convert,
                                  .names = names,
                                  .only = only,
                                  .without = without});
      },
      "world"_a, "folder"_a, "tensors"_a, "strict"_a = true, "convert"_a = false, "names"_a = "",
      "only"_a = std::vector<std::string>(), "without"_a = std::vector<std::string>(),
      WithoutGil());
  m.def("read_hugging_face", &read_hugging_face, "folder"_a, WithoutGil());
  m.def("read_checkpoint", &read_checkpoint, "folder"_a, "step"_a = py::none(), WithoutGil());
  m.def("checkpoint_steps", &checkpoint_steps, "folder"_a, WithoutGil());
  bind_manager(m);
}

}  // namespace intarsia
