#include "checkpoint/store/s3.h"

#include <gtest/gtest.h>

#include "checkpoint/store/answering.h"
#include "error_text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::Answering;
using intarsia::testing::expect_error;

/// A store whose answers a test gives. What it keeps and gives back is tried with a real one:
/// tests/store.
struct Store : Answering {
  explicit Store(Answer answer)
      : Answering(std::move(answer)), s3([this] {
          return StoreSettings{.endpoint = url(),
                               .credentials = {"the-key", "the-secret", ""},
                               .stall_seconds = 1,
                               .tries = 3};
        }) {}
  S3 s3;
};

const Object kObject{"bucket", "a/b c"};

TEST(S3, PathsAreBucketsAndKeys) {
  EXPECT_EQ(Object::parse("s3://b/c/d").key, "c/d");
  EXPECT_EQ(Object::parse("s3://b").bucket, "b");
  EXPECT_EQ(kObject.to_string(), "s3://bucket/a/b c");
  for (const char* path : {"s3://", "s3:///x", "b/c", ""}) {
    expect_error<ValueError>([&] { Object::parse(path); }, {"is not of the form s3://bucket"});
  }
}

TEST(S3, ABusyStoreIsAskedAgain) {
  Store store([](const std::string&, std::size_t number) -> std::string {
    if (number == 0)
      return Answering::text("503 Slow Down", "<Error><Code>SlowDown</Code></Error>");
    if (number == 1) return "";
    return Answering::text("200 OK", "");
  });
  const std::string body = "x";
  store.s3.put(kObject, std::as_bytes(std::span(body)));
  EXPECT_EQ(store.requests().size(), 3U);
  EXPECT_TRUE(store.requests()[2].starts_with("PUT /bucket/a/b%20c HTTP/1.1"));
}

TEST(S3, FailuresNameTheObjectAndTheReasonAndNoSecret) {
  Store store([](const std::string& request, std::size_t) -> std::string {
    if (request.starts_with("GET")) {
      return Answering::text("403 No",
                             "<Error><Code>AccessDenied</Code><Message>not "
                             "you</Message></Error>");
    }
    return "";
  });
  std::string into(4, ' ');
  const auto read = [&] {
    store.s3.get(kObject, {4, "t"}, 0, std::as_writable_bytes(std::span(into)));
  };
  expect_error<FileError>(
      read, {"s3://bucket/a/b c: reading bytes 0 to 3 failed: status 403, AccessDenied: not you"});
  EXPECT_EQ(store.requests().size(), 1U);
  try {
    store.s3.upload_part(kObject, "u", 7, std::as_bytes(std::span(into)));
    FAIL();
  } catch (const FileError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("upload of part 7 (4 bytes) failed 3 times: "), text.npos) << text;
    EXPECT_EQ(text.find("the-"), text.npos) << text;
  }
}

TEST(S3, AnAnswerThatIsTooShortIsNone) {
  Store store([](const std::string&, std::size_t number) {
    return Answering::text("206 Partial Content", number == 0 ? "12" : "1234");
  });
  std::string into(4, ' ');
  store.s3.get(kObject, {9, "t"}, 3, std::as_writable_bytes(std::span(into)));
  EXPECT_EQ(into, "1234");
  EXPECT_NE(store.requests()[1].find("Range: bytes=3-6\r\n"), std::string::npos);
  EXPECT_NE(store.requests()[1].find("If-Match: t\r\n"), std::string::npos);
  expect_error<FileError>(
      [&] {
        store.s3.get(kObject, {5, ""}, 3, std::as_writable_bytes(std::span(into)));
      },
      {"ends at byte 5"});
}

TEST(S3, PartsThatWereJoinedUnheardAreJoined) {
  Store store([](const std::string& request, std::size_t number) -> std::string {
    if (request.starts_with("HEAD")) {
      return "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nConnection: close\r\n\r\n";
    }
    if (number == 0) return "";  // it did, and nobody heard it
    return Answering::text("404 Not Found", "<Error><Code>NoSuchUpload</Code></Error>");
  });
  const std::vector<std::string> tags{"\"1\"", "\"2\""};
  store.s3.complete_upload(kObject, "u", tags, 8);
  expect_error<FileError>([&] { store.s3.complete_upload(kObject, "u", tags, 9); },
                          {"joining 2 parts failed: status 404, NoSuchUpload, not 9 bytes"});
}

TEST(S3, ListsGoOnWhereTheyEnded) {
  Store store([](const std::string& request, std::size_t) {
    const bool is_second = request.find("continuation-token=t%2F") != request.npos;
    return Answering::text(
        "200 OK", is_second
                      ? "<ListBucketResult><Contents><Key>p/2</Key></Contents></ListBucketResult>"
                      : "<ListBucketResult><IsTruncated>true</IsTruncated>"
                        "<NextContinuationToken>t/</NextContinuationToken><Contents><Key>p/1</Key>"
                        "</Contents><CommonPrefixes><Prefix>p/f/</Prefix></CommonPrefixes>"
                        "</ListBucketResult>");
  });
  const auto found = store.s3.list({"bucket", "p/"}, false);
  EXPECT_EQ(found.keys, (std::vector<std::string>{"p/1", "p/2"}));
  EXPECT_EQ(found.folders, std::vector<std::string>{"p/f/"});
}

}  // namespace
}  // namespace intarsia::checkpoint
