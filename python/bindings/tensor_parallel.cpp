// Plans of tensor parallelism.
#include <torch/csrc/utils/pybind.h>

#include <string>
#include <vector>

#include "bind.h"
#include "intarsia/pattern.h"
#include "intarsia/tensor_parallel.h"

using namespace pybind11::literals;

namespace intarsia {
namespace {

template <class Function>
void bind_style(py::module_& m, const char* name, Function style, const char* doc) {
  m.def(
      name,
      [style](std::optional<Placement> input, std::optional<Placement> output, std::int64_t heads) {
        return style({input, output, heads});
      },
      "input"_a = std::nullopt, "output"_a = std::nullopt, "heads"_a = 0, doc);
}

/// What Python passes for a linear layer.
using Given = std::pair<at::Tensor, std::optional<at::Tensor>>;

LinearParameters linear_of(const Given& given) {
  return {given.first, given.second.value_or(at::Tensor())};
}

std::vector<LinearParameters> linears_of(const std::vector<Given>& given) {
  std::vector<LinearParameters> out;
  for (const Given& g : given) out.push_back(linear_of(g));
  return out;
}

}  // namespace

void bind_tensor_parallel(py::module_& m) {
  m.def("matches", &matches, "name"_a, "pattern"_a,
        "Whether a name fits a pattern of `fnmatch`, in which `|` separates alternatives.");
  m.def(
      "matches_parts", &matches_parts, "name"_a, "pattern"_a,
      "The same where `*` stands for letters of one part of the name: `layers.*` fits `layers.0`, "
      "and not `layers.0.norm`.");
  py::class_<ModuleStyle> style(m, "ModuleStyle", "What a plan does to a module, along its axis.");
  copy_as_value(style);
  style
      .def(py::init<std::vector<std::pair<std::string, Placement>>, std::optional<Placement>,
                    std::optional<Placement>, std::int64_t>(),
           "parameters"_a, "input"_a = std::nullopt, "output"_a = std::nullopt, "heads"_a = 0)
      .def_readonly("parameters", &ModuleStyle::parameters)
      .def_readonly("input", &ModuleStyle::input)
      .def_readonly("output", &ModuleStyle::output)
      .def_readonly("heads", &ModuleStyle::heads);
  bind_style(m, "column", column,
             "A linear module whose outputs are sharded: weight S(0), bias S(0).");
  bind_style(m, "row", row, "A linear module whose inputs are sharded: weight S(1), bias R.");
  bind_style(m, "vocabulary", vocabulary, "An embedding whose vocabulary is sharded: weight S(0).");
  m.def("sequence", &sequence, "dim"_a = 1, "A norm whose input is sharded along the sequence.");
  m.def("prepare_input", &prepare_input, "placement"_a);
  m.def("prepare_output", &prepare_output, "placement"_a);

  py::class_<TensorParallelPlan> plan(
      m, "TensorParallelPlan", "Which modules are sharded along one axis of a mesh, by names.");
  copy_as_value(plan);
  plan.def(py::init([](std::vector<std::pair<std::string, ModuleStyle>> modules, std::string axis,
                       std::int64_t chunks) {
             TensorParallelPlan plan{std::move(axis), {}, {.chunks = chunks}};
             for (auto& [pattern, style] : modules) plan.modules.push_back({pattern, style});
             return plan;
           }),
           "modules"_a, "axis"_a = "tp", "chunks"_a = 1)
      .def_property_readonly("chunks",
                             [](const TensorParallelPlan& plan) { return plan.overlap.chunks; })
      .def_readonly("axis", &TensorParallelPlan::axis)
      .def_property_readonly("modules",
                             [](const TensorParallelPlan& plan) {
                               std::vector<std::pair<std::string, ModuleStyle>> modules;
                               for (const PlannedModules& entry : plan.modules)
                                 modules.emplace_back(entry.pattern, entry.style);
                               return modules;
                             })
      .def("__bool__", [](const TensorParallelPlan& plan) { return !plan.modules.empty(); });
  m.def("layouts", &layouts, "plan"_a, "mesh"_a, "modules"_a, "tensors"_a,
        "The layouts that a plan gives to a model's parameters and buffers, as names and texts.");
  m.def("placed", &placed, "x"_a, "axis"_a, "placement"_a, WithoutGil(),
        "A tensor with another placement along one axis of its mesh.");
  m.def("wanted_input", &wanted_input, "plan"_a, "module"_a);
  m.def("wanted_output", &wanted_output, "plan"_a, "module"_a);
  m.def("placed_input", &placed_input, "x"_a, "plan"_a, "module"_a, WithoutGil(),
        "A tensor, placed as the plan says for the input of this module.");
  m.def("placed_output", &placed_output, "x"_a, "plan"_a, "module"_a, WithoutGil(),
        "A tensor, placed as the plan says for the output of this module.");
  m.def(
      "gathered_linears",
      [](const at::Tensor& x, const std::vector<Given>& linears, const std::string& axis,
         std::int64_t chunks) {
        return gathered_linears(x, linears_of(linears), axis, {.chunks = chunks});
      },
      "x"_a, "linears"_a, "axis"_a, "chunks"_a = 0, WithoutGil());
  m.def(
      "scattered_linear",
      [](const at::Tensor& x, const Given& linear, const std::string& axis, int dim,
         std::int64_t chunks) {
        return scattered_linear(x, linear_of(linear), axis, dim, {.chunks = chunks});
      },
      "x"_a, "linear"_a, "axis"_a, "dim"_a, "chunks"_a = 0, WithoutGil());
  m.def(
      "placed_linears",
      [](const at::Tensor& x, const TensorParallelPlan& plan, const std::string& module,
         const std::vector<Given>& linears) {
        return placed_linears(x, plan, module, linears_of(linears));
      },
      "x"_a, "plan"_a, "module"_a, "linears"_a, WithoutGil());
  m.def(
      "placed_linear",
      [](const at::Tensor& x, const TensorParallelPlan& plan, const std::string& module,
         const Given& linear) { return placed_linear(x, plan, module, linear_of(linear)); },
      "x"_a, "plan"_a, "module"_a, "linear"_a, WithoutGil());
  m.def(
      "llama_plan",
      [](std::string axis, bool sequence_parallel, bool loss_parallel, std::int64_t heads,
         std::int64_t key_value_heads, std::int64_t chunks) {
        return llama_plan({std::move(axis),
                           sequence_parallel,
                           loss_parallel,
                           heads,
                           key_value_heads,
                           {.chunks = chunks}});
      },
      "axis"_a = "tp", "sequence_parallel"_a = false, "loss_parallel"_a = true, "heads"_a = 0,
      "key_value_heads"_a = 0, "chunks"_a = 1, "The plan for Llama-like models.");
}

}  // namespace intarsia
