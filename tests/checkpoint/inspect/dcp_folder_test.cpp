#include "checkpoint/inspect/dcp_folder.h"

#include <gtest/gtest.h>

#include "checkpoint/dcp_files.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::DcpFiles;
using intarsia::testing::expect_error;
using intarsia::testing::MemoryFiles;
using intarsia::testing::PickleWriter;
using intarsia::testing::saved_tensor;
using intarsia::testing::zip_of;

std::string read(DcpFiles& folder) {
  folder.write();
  const DcpFolder found = read_dcp_folder(folder.files, "/root", true);
  EXPECT_EQ(found.values, (Json{{"n", {{"k", 7}}}}));
  std::string out(6, ' ');
  read_dcp_tensor(folder.files, "/root", found.tensors.at(0),
                  std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(DcpFolder, IsReadFromItsChunks) {
  DcpFiles folder;
  EXPECT_EQ(read(folder), "abcdef");
}

TEST(DcpFolder, WhatDoesNotFitIsNamed) {
  const auto refused = [](const std::function<void(DcpFiles&)>& change, const char* reason) {
    DcpFiles folder;
    change(folder);
    expect_error<FileError>([&] { read(folder); }, {"/root/", reason});
  };
  refused([](DcpFiles& f) { f.second_offset = {0, 2}; }, "'w' has a chunk beyond its sizes");
  refused([](DcpFiles& f) { f.second_offset = {0, 0}; }, "'w' is stored twice");
  refused([](DcpFiles& f) { f.file = "../secret"; }, "is in '../secret', which is no file");
  refused(
      [](DcpFiles& f) {
        f.second = saved_tensor({2, 3}, "bcefgh");
      },
      "is not what the metadata");
  refused([](DcpFiles& f) { f.second = saved_tensor({2, 2}, "bce"); }, "has fewer bytes");
  refused([](DcpFiles& f) { f.second = zip_of({{"a/x", "1"}}); }, "has no data.pkl");
}

TEST(DcpFolder, NothingIsExecuted) {
  const auto refused = [](const std::function<void(DcpFiles&)>& change) {
    DcpFiles folder;
    change(folder);
    expect_error<FileError>([&] { read(folder); }, {"names os.system", "not read"});
  };
  const std::string evil =
      PickleWriter().global("os", "system").op('(').text("true").op('t').op('R').end();
  refused([&](DcpFiles& f) { f.value = zip_of({{"archive/data.pkl", evil}}); });
  refused([&](DcpFiles& f) { f.first = zip_of({{"archive/data.pkl", evil}}); });
  MemoryFiles files;
  write_text(files, "/root/.metadata", evil);
  expect_error<FileError>([&] { read_dcp_folder(files, "/root", true); }, {"names os.system"});
}

}  // namespace
}  // namespace intarsia::checkpoint
