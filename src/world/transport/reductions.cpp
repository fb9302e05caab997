#include "world/transport/reductions.h"

#include <ATen/ATen.h>

#include "base/text.h"
#include "intarsia/error.h"
#include "world/transport/dtype.h"

namespace intarsia {
namespace {

/// The dtype in which partial values are combined: wide enough that adding halves does not lose
/// what they hold.
at::ScalarType accumulator(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat8_e4m3fn:
    case at::kFloat8_e5m2:
      return at::kFloat;
    case at::kComplexHalf:
      return at::kComplexFloat;
    default:
      return type;
  }
}

}  // namespace

void check_reduction(std::string_view where, const Placement& how, at::ScalarType type) {
  if (!how.is_partial()) {
    fail<ValueError>(where, how, " is no reduction; use a partial placement such as P(sum)");
  }
  if (type == at::kUInt16 || type == at::kUInt32 || type == at::kUInt64) {
    fail<UnsupportedError>(where, "ATen cannot reduce ", to_text(*dtype_of(type)),
                           "; convert the tensor to a signed type first");
  }
  const auto dtype = dtype_of(type);
  if (dtype && is_exact(how.reduction(), *dtype)) return;
  fail<ValueError>(
      where, how, " of ", dtype ? to_text(*dtype) : c10::toString(type), " has no exact value; ",
      how.reduction() == Reduction::avg ? "use P(sum) and divide" : "convert the tensor first");
}

at::Tensor to_partial(const at::Tensor& x, const Placement& how) {
  if (how.reduction() != Reduction::norm) return x;
  return x.to(accumulator(x.scalar_type())).abs().pow(how.norm_order());
}

at::Tensor from_partials(at::Tensor combined, const Placement& how, std::int64_t n,
                         at::ScalarType type) {
  if (how.reduction() == Reduction::norm) combined = combined.pow(1 / how.norm_order());
  if (how.reduction() == Reduction::avg) combined = combined.div(n);
  return combined.to(type);
}

void combine_into(at::Tensor& value, const at::Tensor& next, Reduction how) {
  switch (how) {
    case Reduction::sum:
    case Reduction::avg:
    case Reduction::norm:
      value.add_(next);
      break;
    case Reduction::min:
      at::minimum_out(value, value, next);
      break;
    case Reduction::max:
      at::maximum_out(value, value, next);
      break;
    case Reduction::product:
      value.mul_(next);
      break;
    case Reduction::bit_and:
      value.bitwise_and_(next);
      break;
    case Reduction::bit_or:
      value.bitwise_or_(next);
      break;
    case Reduction::bit_xor:
      value.bitwise_xor_(next);
      break;
  }
}

at::Tensor combine(at::TensorList partials, const Placement& how) {
  const at::ScalarType type = accumulator(partials[0].scalar_type());
  if (partials[0].is_meta()) return at::empty_like(partials[0], type);  // however many there are
  const bool adds = is_linear(how) || how.reduction() == Reduction::norm;
  // Adding the first two makes the result: one pass over memory less than copying the first.
  const std::size_t first =
      adds && partials.size() > 1 && type == partials[0].scalar_type() ? 2 : 1;
  at::Tensor out = first == 2 ? partials[0].add(partials[1])
                              : partials[0].to(type, /*non_blocking=*/false, /*copy=*/true);
  for (std::size_t i = first; i < partials.size(); ++i) {
    combine_into(out, partials[i].to(out.scalar_type()), how.reduction());
  }
  return out;
}

}  // namespace intarsia
