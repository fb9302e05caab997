// Checks that a call throws an error of one type, with a message that contains all given parts.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>

namespace intarsia::testing {

template <class E>
void expect_error(const std::function<void()>& call, std::initializer_list<std::string> parts) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const E& error) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "the message\n  " << error.what() << "\nlacks\n  " << part;
    }
  }
}

}  // namespace intarsia::testing
