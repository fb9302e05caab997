// Patterns of names: the one language in which parameters and modules are named by many functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace intarsia {

/// Whether a name fits a pattern. `*` stands for any letters, dots included, `?` for one, `[qkv]`,
/// `[0-9]` and `[!a]` for one of a set; `|` separates alternatives; every other letter stands for
/// itself.
///
///     matches("layers.0.wq.weight", "layers.*.w[qkv].weight");  // true
///     matches("layers.0.wq", "*.wq|*.wk|*.wv");                 // true
///     matches("layers.0.wq.weight", "layers.*.wq");             // false
bool matches(std::string_view name, std::string_view pattern);

/// The same where `*` stands for letters of one part of the name: `layers.*` fits `layers.0`, and
/// not `layers.0.norm`. Names and alternatives have as many dots.
bool matches_parts(std::string_view name, std::string_view pattern);

/// Whether a name fits any of the patterns: none, if there are none.
bool matches_any(std::string_view name, const std::vector<std::string>& patterns);

}  // namespace intarsia
