// Who is told of added rules.
#pragma once

#include <string>

namespace intarsia {

/// From now on `listener` is called with the name of each rule that is added or removed, and now
/// with those that were added before. For the layer that runs ops.
void listen_to_rules(void (*listener)(const std::string& name));

}  // namespace intarsia
