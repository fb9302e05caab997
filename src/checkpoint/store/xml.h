// The little XML that object stores answer with: elements by name, without attributes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace intarsia::checkpoint {

/// What stands between `<name>` and `</name>`, each time, in order; not decoded.
std::vector<std::string_view> elements(std::string_view xml, std::string_view name);

/// The text of the first one, decoded; empty where there is none.
std::string element_text(std::string_view xml, std::string_view name);

/// `&lt;` and the like, and `&#47;`, as what they stand for.
std::string xml_decoded(std::string_view text);

/// The other way.
std::string xml_encoded(std::string_view text);

}  // namespace intarsia::checkpoint
