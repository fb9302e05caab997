#include "world/collectives/backend_reductions.h"

#include <array>

#include "world/transport/reductions.h"

namespace intarsia {
namespace {

struct ReductionsRow {
  std::string_view backend;
  BackendReductions reductions;
};
constexpr std::array<ReductionsRow, 2> kRows{{
    {"nccl", {.sums_halves = true, .combines_bits = false, .scatters_well = true}},
    {"shm", {.as_here = true, .sums_halves = true, .scatters_well = true}},
}};

bool is_bitwise(Reduction how) {
  return how == Reduction::bit_and || how == Reduction::bit_or || how == Reduction::bit_xor;
}

}  // namespace

BackendReductions reductions_of(std::string_view backend) {
  for (const ReductionsRow& row : kRows) {
    if (row.backend == backend) return row.reductions;
  }
  return {};
}

bool BackendReductions::reduces(at::ScalarType dtype, Reduction how) const {
  if (how == Reduction::norm) return false;
  if (as_here) return true;
  if (how == Reduction::avg) return false;
  switch (dtype) {
    // Backends lose NaNs in min and max of floats; ATen keeps them.
    case at::kFloat:
    case at::kDouble:
      return how == Reduction::sum || how == Reduction::product;
    case at::kHalf:
    case at::kBFloat16:
      return sums_halves && how == Reduction::sum;
    case at::kInt:
    case at::kLong:
    case at::kByte:
    case at::kChar:
      return combines_bits || !is_bitwise(how);
    default:
      return false;
  }
}

bool BackendReductions::scatters_reduced(at::ScalarType dtype, Reduction how) const {
  return scatters_well && reduces(dtype, how);
}

Reduction BackendReductions::asked_of_backend(const Placement& how, at::ScalarType type) const {
  if (!is_linear(how)) return how.reduction();
  const bool averages = !c10::isComplexType(type) && reduces(type, Reduction::avg);
  return how.reduction() == Reduction::avg && averages ? Reduction::avg : Reduction::sum;
}

bool BackendReductions::native(const Placement& how, at::ScalarType type, bool scatter) const {
  const bool complex = c10::isComplexType(type);
  if (complex && (!is_linear(how) || type == at::kComplexHalf)) return false;
  const at::ScalarType real = complex ? c10::toRealValueType(type) : type;
  const Reduction reduction = asked_of_backend(how, type);
  return scatter ? scatters_reduced(real, reduction) : reduces(real, reduction);
}

}  // namespace intarsia
