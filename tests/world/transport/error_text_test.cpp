#include "world/transport/error_text.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <new>
#include <string>

#include "intarsia/error.h"

namespace intarsia {
namespace {

TEST(ErrorText, TorchErrorsComeWithoutTheirBacktrace) {
  try {
    TORCH_CHECK(false, "rank ", 3, " is gone");
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("Exception raised from"), std::string::npos)
        << "there was a backtrace to leave out";
    EXPECT_EQ(text_of(error), "rank 3 is gone");
  }
}

TEST(ErrorText, SoDoErrorsThatDeriveFromTheirs) {
  const c10::DistBackendError error({"f", "file", 1}, "the wire is broken");
  const std::exception& seen = error;
  EXPECT_EQ(text_of(seen), "the wire is broken");
}

TEST(ErrorText, KeepsWhatWasAddedOnTheWay) {
  c10::Error error({"f", "file", 1}, "the wire is broken");
  error.add_context("while gathering");
  const std::string text(text_of(error));
  EXPECT_NE(text.find("the wire is broken"), std::string::npos);
  EXPECT_NE(text.find("while gathering"), std::string::npos);
  EXPECT_EQ(text.find("Exception raised from"), std::string::npos);
}

TEST(ErrorText, OthersSayWhatTheySay) {
  EXPECT_EQ(text_of(std::runtime_error("no route\nto host")), "no route\nto host");
  EXPECT_EQ(text_of(WorldError("[World] closed")), "[World] closed");
  EXPECT_EQ(text_of(std::bad_alloc()), "std::bad_alloc");
}

}  // namespace
}  // namespace intarsia
