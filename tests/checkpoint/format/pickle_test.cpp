#include "checkpoint/format/pickle.h"

#include <gtest/gtest.h>

#include "checkpoint/pickle_writer.h"
#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::PickleWriter;
using Kind = Pickled::Kind;

bool known(std::string_view global) {
  return global == "torch Size" || global == "collections OrderedDict";
}

Pickle parsed(const std::string& text) {
  return parse_pickle("p", std::as_bytes(std::span(text)), known);
}

void expect_refused(const std::string& text, const char* reason) {
  expect_error<FileError>([&] { parsed(text); }, {"p: the pickle ", reason});
}

TEST(Pickle, ReadsNumbersTextsAndContainers) {
  // {'a': [1, -2, 300, 2.5, None, True], 'b': ('x', b'y')}
  const std::string text(
      "\x80\x04}(\x8c\x01"
      "a](K\x01J\xfe\xff\xff\xffM\x2c\x01G\x40\x04\0\0\0\0\0\0N\x88"
      "e"
      "\x8c\x01"
      "b\x8c\x01xC\x01y\x86u.",
      50);
  const Pickle pickle = parsed(text);
  ASSERT_TRUE(pickle.value->is(Kind::dict));
  const auto& list = pickle.value->find("a")->items;
  ASSERT_EQ(list.size(), 6U);
  EXPECT_EQ(list[0]->integer, 1);
  EXPECT_EQ(list[1]->integer, -2);
  EXPECT_EQ(list[2]->integer, 300);
  EXPECT_EQ(list[3]->number, 2.5);
  EXPECT_TRUE(list[4]->is(Kind::none));
  EXPECT_TRUE(list[5]->is(Kind::boolean) && list[5]->integer == 1);
  const auto& tuple = pickle.value->find("b")->items;
  EXPECT_EQ(tuple[0]->text + tuple[1]->text, "xy");
  EXPECT_EQ(pickle.value->find("c"), nullptr);
}

TEST(Pickle, LongIntegersHaveASign) {
  EXPECT_EQ(parsed(std::string("\x8a\x01\xff.", 4)).value->integer, -1);
  EXPECT_EQ(parsed(std::string("\x8a\x03\0\0\x01.", 6)).value->integer, 65536);
  EXPECT_EQ(parsed(std::string("\x8a\0.", 3)).value->integer, 0);
  expect_refused(std::string("\x8a\x09\0\0\0\0\0\0\0\0\x01.", 12), "more than 64 bits");
}

TEST(Pickle, AnObjectIsWhatItWasMadeFrom) {
  const Pickle size = parsed(PickleWriter().sizes({2, 3}).end());
  ASSERT_TRUE(size.value->is_object_of("torch Size"));
  EXPECT_EQ(size.value->items[1]->items[0]->items[1]->integer, 3);
  EXPECT_EQ(size.value->state(), nullptr);
  EXPECT_TRUE(parsed(PickleWriter().global("collections", "OrderedDict").op(')').op('R').end())
                  .value->is(Kind::dict));
}

TEST(Pickle, NothingThatIsNotKnownIsRead) {
  expect_refused("cos\nsystem\n(\x8c\x02lstR.", "names os.system");
  expect_refused(PickleWriter().global("builtins", "eval").end(), "names builtins.eval");
  expect_refused(PickleWriter().text("torch").text("load").op(0x93).end(), "names torch.load");
  expect_refused("ios\nsystem\n.", "the opcode 105");
  expect_refused("(\x8c\x02lscos\nsystem\no.", "names os.system");
}

TEST(Pickle, WhatDoesNotFitTogetherIsRefused) {
  expect_refused("", "ends too early");
  expect_refused("NN.", "does not end with one value");
  expect_refused("(N.", "does not end with one value");
  expect_refused(".", "does not end with one value");
  expect_refused("a.", "takes a value where there is none");
  expect_refused("NNa.", "puts items where none go");
  expect_refused("}(Nu.", "a key without a value");
  expect_refused("t.", "has no mark");
  expect_refused("h\x01.", "recalls what it did not remember");
  expect_refused("NNR.", "calls what is no class");
  expect_refused(std::string("X\xff\xff\xff\xff", 5), "ends too early");
  expect_refused(std::string("\x8d\xff\xff\xff\xff\xff\xff\xff\xff", 9), "ends too early");
  expect_refused(PickleWriter().object("torch", "Size").op('}').op('b').op('}').op('b').end(),
                 "two states");
}

TEST(Pickle, AValueMayContainItself) {
  const Pickle pickle = parsed(
      "]q\x01h\x01"
      "a.");
  EXPECT_EQ(pickle.value->items[0], pickle.value);
}

}  // namespace
}  // namespace intarsia::checkpoint
