// Counter-examples: a case that fails, made as small as can be.
#pragma once

#include <string>

#include "intarsia/prove.h"
#include "prove/bench.h"
#include "prove/case.h"

namespace intarsia {

/// The same failure in a smaller case: more R, fewer axes and ranks, shorter dimensions.
/// `difference`: that of the case as given. Says so where the smallest case fails only after the
/// calls that the bench has seen.
CounterExample smallest_counter_example(Bench& bench, const ProofOptions& options, Case c,
                                        std::string difference);

}  // namespace intarsia
