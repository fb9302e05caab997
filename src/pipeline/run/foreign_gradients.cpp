#include "pipeline/run/foreign_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tensor/core/impl.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia::pipeline {
namespace {

constexpr std::size_t kMarks = 32;  // in a number

}  // namespace

bool ForeignGradients::is_here(const Schedule& schedule, std::size_t stage) const {
  return hosts_any(world_, places_[static_cast<std::size_t>(schedule.rank_of_stage[stage])]);
}

std::vector<double> ForeignGradients::marks(const Schedule& schedule) const {
  std::vector<double> out;
  std::size_t at = 0;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const bool here = is_here(schedule, s);
    for (const auto& [parameter, tensor] : stages_[s].parameters) {
      if (at % kMarks == 0) out.push_back(0);
      if (here && tensor.grad().defined()) out.back() += std::exp2(at % kMarks);
      ++at;
    }
  }
  return out;
}

void ForeignGradients::fill(const Schedule& schedule, const std::vector<std::vector<double>>& told,
                            std::size_t first) {
  const at::NoGradGuard no_grad;
  std::size_t at = 0;
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const bool here = is_here(schedule, s);
    for (const auto& [parameter, tensor] : stages_[s].parameters) {
      const std::size_t word = first + at / kMarks;
      const std::uint64_t bit = std::uint64_t{1} << (at % kMarks);
      ++at;
      if (here || !is_ours(tensor)) continue;
      const bool is_marked = std::ranges::any_of(told, [&](const std::vector<double>& numbers) {
        return (static_cast<std::uint64_t>(numbers[word]) & bit) != 0;
      });
      at::Tensor& gradient = at::Tensor(tensor).mutable_grad();
      if (!is_marked || gradient.defined()) continue;
      at::Tensor& zeros = zeros_[tensor.unsafeGetTensorImpl()];
      if (!zeros.defined()) zeros = at::zeros_like(tensor);
      gradient = zeros;
    }
  }
}

}  // namespace intarsia::pipeline
