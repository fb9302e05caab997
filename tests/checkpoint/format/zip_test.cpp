#include "checkpoint/format/zip.h"

#include <gtest/gtest.h>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/pickle_writer.h"
#include "error_text.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::expect_error;
using intarsia::testing::MemoryFiles;
using intarsia::testing::zip_of;

std::vector<ZipMember> members_of(const std::string& before, const std::string& archive,
                                  std::uint64_t bytes) {
  MemoryFiles files;
  write_text(files, "/root/f", before + archive + "after");
  return read_zip("/root/f", *files.open("/root/f"), before.size(), bytes);
}

TEST(Zip, FindsTheBytesOfItsMembers) {
  const std::string archive = zip_of({{"a/data.pkl", "pickle"}, {"a/data/0", "123"}});
  const auto members = members_of("before", archive, archive.size());
  ASSERT_EQ(members.size(), 2U);
  EXPECT_EQ(members[1].name, "a/data/0");
  EXPECT_EQ(members[1].bytes, 3U);
  EXPECT_EQ(("before" + archive).substr(members[1].begin, 3), "123");
}

TEST(Zip, WhatIsNoneIsRefused) {
  const std::string archive = zip_of({{"a", "1234"}});
  const auto refused = [](const std::string& text, std::uint64_t bytes, const char* reason) {
    expect_error<FileError>([&] { members_of("", text, bytes); }, {"/root/f: the archive", reason});
  };
  refused(archive, 5, "is too short");
  refused(archive, archive.size() - 1, "has no end");
  refused(archive, archive.size() + 100, "reaches beyond the file");
  refused(zip_of({{"a", "1234"}}, 8), archive.size(), "has 'a' compressed");
  for (std::size_t i = 0; i < archive.size(); ++i) {  // whatever is damaged, nothing crashes
    std::string damaged = archive;
    damaged[i] = static_cast<char>(0xff);
    try {
      for (const ZipMember& member : members_of("", damaged, damaged.size())) {
        EXPECT_LE(member.begin + member.bytes, damaged.size());
      }
    } catch (const FileError&) {  // NOLINT(bugprone-empty-catch)
    }
  }
}

}  // namespace
}  // namespace intarsia::checkpoint
