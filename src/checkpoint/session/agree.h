// Working together: an error of one rank is the error of all.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/json.h"
#include "checkpoint/session/ranks.h"

namespace intarsia::checkpoint {

/// What a rank does, and what it has to say about it.
using Work = std::function<Json()>;
/// What rank 0 does with what all said.
using Decide = std::function<Json(const std::vector<Json>&)>;

/// A message without its `[function] `.
std::string_view without_function(std::string_view text);

/// Every rank works; if all could, rank 0 decides, and all get its result. If one could not, or
/// rank 0 cannot decide, all throw an error of that kind, with `before` and the rank before its
/// words. COLLECTIVE: all ranks.
Json agree(Ranks& ranks, const Work& work, const Decide& decide,
           const std::function<std::string()>& before);

}  // namespace intarsia::checkpoint
