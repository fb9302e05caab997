// Rules of users answer what they are asked.
#pragma once

#include "intarsia/rule.h"

namespace intarsia {

/// The rule, with answers that are compared with the call: a ValueError names the op and the row
/// that has other numbers of operands or results, or asks for a formula that the rule does not
/// have.
Rule checked(Rule rule);

}  // namespace intarsia
