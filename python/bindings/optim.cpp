// Clipping, the check of optimizers' states, and Muon.
#include <torch/csrc/utils/pybind.h>

#include "bind.h"
#include "intarsia/optim.h"

using namespace pybind11::literals;

namespace intarsia {
namespace {

using Tensors = std::vector<at::Tensor>;

NewtonSchulz to_iteration(const std::array<double, 3>& coefficients, std::int64_t steps,
                          double epsilon, at::ScalarType dtype) {
  return {.coefficients = coefficients, .steps = steps, .epsilon = epsilon, .dtype = dtype};
}

}  // namespace

void bind_optim(py::module_& m) {
  m.def(
      "total_norm",
      [](const Tensors& tensors, double norm_type, bool error_if_nonfinite) {
        return total_norm(tensors, {norm_type, error_if_nonfinite});
      },
      "tensors"_a, "norm_type"_a = 2.0, "error_if_nonfinite"_a = false, WithoutGil());
  m.def(
      "get_grad_norm",
      [](const Tensors& parameters, double norm_type, bool error_if_nonfinite) {
        return get_grad_norm(parameters, {norm_type, error_if_nonfinite});
      },
      "parameters"_a, "norm_type"_a = 2.0, "error_if_nonfinite"_a = false, WithoutGil());
  m.def(
      "clip_grad_norm_",
      [](const Tensors& parameters, double max_norm, double norm_type, bool error_if_nonfinite) {
        return clip_grad_norm_(parameters, max_norm, {norm_type, error_if_nonfinite});
      },
      "parameters"_a, "max_norm"_a, "norm_type"_a = 2.0, "error_if_nonfinite"_a = false,
      WithoutGil());
  m.def(
      "check_optimizer",
      [](const std::vector<std::tuple<std::string, std::string, at::Tensor, at::Tensor>>& states) {
        std::vector<OptimizerState> list;
        for (const auto& [parameter, name, of, value] : states) {
          list.push_back({parameter, name, of, value});
        }
        check_optimizer(list);
      },
      "states"_a);
  m.def("check_parameters", &check_parameters, "trained"_a, "names"_a);
  m.def(
      "balanced_owners",
      [](const std::vector<std::int64_t>& costs, std::int64_t ranks) {
        return balanced_owners(costs, ranks);
      },
      "costs"_a, "ranks"_a);
  m.def(
      "orthogonalize",
      [](const Tensors& matrices, const std::array<double, 3>& coefficients, std::int64_t steps,
         double epsilon, at::ScalarType dtype) {
        return orthogonalize(matrices, to_iteration(coefficients, steps, epsilon, dtype));
      },
      "matrices"_a, "coefficients"_a, "steps"_a, "epsilon"_a, "dtype"_a, WithoutGil());

  py::class_<MuonTensors>(m, "MuonTensors", "Parameters with what a step of Muon needs.")
      .def(py::init([](const Tensors& parameters, const Tensors& gradients, const Tensors& momenta,
                       double lr, double weight_decay, double momentum, bool nesterov,
                       const std::array<double, 3>& coefficients, std::int64_t steps,
                       double epsilon, at::ScalarType dtype, bool like_adamw) {
             return MuonTensors{
                 parameters, gradients, momenta,
                 MuonOptions(lr)
                     .weight_decay(weight_decay)
                     .momentum(momentum)
                     .nesterov(nesterov)
                     .iteration(to_iteration(coefficients, steps, epsilon, dtype))
                     .scale(like_adamw ? MuonScale::match_rms_adamw : MuonScale::original)};
           }),
           py::kw_only(), "parameters"_a, "gradients"_a, "momenta"_a, "lr"_a, "weight_decay"_a,
           "momentum"_a, "nesterov"_a, "coefficients"_a, "steps"_a, "epsilon"_a, "dtype"_a,
           "like_adamw"_a);
  m.def("muon_step", &muon_step, "groups"_a, WithoutGil());
}

}  // namespace intarsia
