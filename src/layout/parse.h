// The pieces of text forms that several nouns share.
#pragma once

#include "base/text.h"
#include "intarsia/placement.h"

namespace intarsia {

Placement parse_placement(Cursor& cursor);

}  // namespace intarsia
