// The search for the cheapest plan: a shortest path over the layouts that can be of use.
#pragma once

#include <span>

#include "intarsia/plan.h"

namespace intarsia {

/// The cheapest plan. REQUIRES: the same mesh, and no axis between different kinds of partial
/// values.
Plan search(const Layout& from, const Layout& to, std::span<const std::int64_t> shape,
            const PlanOptions& options);

}  // namespace intarsia
