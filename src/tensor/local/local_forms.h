// What an op does to the pieces, where that differs from what it does to the full tensor.
#pragma once

#include "tensor/call/decision.h"
#include "tensor/call/frame.h"

namespace intarsia {

/// Fills in `local_arguments` or `local_call` as the rule's form asks for the layouts chosen.
void set_local_form(const Frame& frame, const Rule& rule, const Question& question,
                    const std::vector<Shape>& sizes, Decision& decision);

/// The same for forms that only look at strides: also where the op runs on full tensors.
void set_form_of_strides(const Frame& frame, const Rule& rule, Decision& decision);

/// LocalForm::scan: each run of a sharded dimension by itself, then what all runs before it add up
/// to.
void set_scan(const Frame& frame, const Question& question, Decision& decision);

/// The same for factories: each rank makes its piece.
void set_local_factory(const Frame& frame, Decision& decision);

}  // namespace intarsia
