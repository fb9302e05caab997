// The words of an error that another library threw.
#pragma once

#include <exception>
#include <string_view>

namespace intarsia {

/// What an error says, without the C++ backtrace that c10's errors carry.
std::string_view text_of(const std::exception& error);

}  // namespace intarsia
