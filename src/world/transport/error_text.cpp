#include "world/transport/error_text.h"

#include <c10/util/Exception.h>

namespace intarsia {

std::string_view text_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  return ours != nullptr ? ours->what_without_backtrace() : error.what();
}

}  // namespace intarsia
