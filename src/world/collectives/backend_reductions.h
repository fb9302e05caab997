// Which reductions are left to a backend: those that it does rightly and well. For the others
// ranks exchange partial values and combine them (parts.h).
#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

#include "intarsia/placement.h"

namespace intarsia {

/// How a backend reduces.
struct BackendReductions {
  /// It reduces as we do: in the order of ranks, halves in single precision, with averages, and
  /// keeps NaNs.
  bool as_here = false;
  /// Its sums of halves are good. Gloo's are not: it adds in half precision, one after the other;
  /// we add in single precision.
  bool sums_halves = false;
  /// It knows and, or and exclusive or of integers.
  bool combines_bits = true;
  /// Its reduce-scatter is worth while. Gloo's was measured at half the speed of exchanging and
  /// adding locally, which also adds in a fixed order and needs no padding.
  bool scatters_well = false;

  /// Whether the backend itself reduces this dtype rightly and well; else collectives exchange and
  /// reduce locally.
  bool reduces(at::ScalarType dtype, Reduction how) const;
  bool scatters_reduced(at::ScalarType dtype, Reduction how) const;

  /// What the backend is asked for. An average that it does not make, or that is seen as reals, is
  /// divided here.
  Reduction asked_of_backend(const Placement& how, at::ScalarType type) const;
  /// Whether the backend reduces this, perhaps seen as reals; with `scatter`, in a reduce-scatter.
  bool native(const Placement& how, at::ScalarType type, bool scatter) const;
};

/// Of the backend that c10d calls by this name. What is not in the table reduces as Gloo does.
BackendReductions reductions_of(std::string_view backend);

}  // namespace intarsia
