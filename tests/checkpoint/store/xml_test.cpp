#include "checkpoint/store/xml.h"

#include <gtest/gtest.h>

namespace intarsia::checkpoint {
namespace {

TEST(Xml, ElementsAreFoundInOrder) {
  const char* text = "<L><C><Key>a&amp;b</Key></C><C><Key>c&#x2F;d</Key></C><P>1</P></L>";
  const auto found = elements(text, "C");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(element_text(found[0], "Key"), "a&b");
  EXPECT_EQ(element_text(found[1], "Key"), "c/d");
  EXPECT_EQ(element_text(text, "P"), "1");
  EXPECT_EQ(element_text(text, "Q"), "");
}

TEST(Xml, WhatBreaksOffIsNotThere) {
  EXPECT_TRUE(elements("<Key>a", "Key").empty());
  EXPECT_TRUE(elements("", "Key").empty());
  EXPECT_EQ(elements("<Key>a</Key><Key>b", "Key").size(), 1U);
}

TEST(Xml, TextsComeBack) {
  const std::string text = R"(<a & "b" 'c'>)";
  EXPECT_EQ(xml_encoded(text), "&lt;a &amp; &quot;b&quot; &apos;c&apos;&gt;");
  EXPECT_EQ(xml_decoded(xml_encoded(text)), text);
  EXPECT_EQ(xml_decoded("&nosuch; &#999999999999; & ;"), "&nosuch; &#999999999999; & ;");
}

}  // namespace
}  // namespace intarsia::checkpoint
