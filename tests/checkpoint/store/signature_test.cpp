#include "checkpoint/store/signature.h"

#include <gtest/gtest.h>

namespace intarsia::checkpoint {
namespace {

const Credentials kExample{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
/// 2013-05-24, 0 o'clock: the day of the examples in Amazon's documents.
const auto kDay = std::chrono::system_clock::from_time_t(1369353600);

std::string header(const std::vector<std::pair<std::string, std::string>>& headers,
                   const std::string& name) {
  for (const auto& [each, value] : headers) {
    if (each == name) return value;
  }
  return {};
}

TEST(Signature, IsThatOfTheExamples) {
  const std::string empty = sha256_text({});
  EXPECT_EQ(empty, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  const auto lifecycle =
      signed_headers({"GET", "examplebucket.s3.amazonaws.com", "/", {{"lifecycle", ""}}}, empty,
                     kExample, "us-east-1", kDay);
  EXPECT_EQ(header(lifecycle, "Authorization"),
            "AWS4-HMAC-SHA256 "
            "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
            "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
            "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  const auto list = signed_headers(
      {"GET", "examplebucket.s3.amazonaws.com", "/", {{"prefix", "J"}, {"max-keys", "2"}}}, empty,
      kExample, "us-east-1", kDay);
  EXPECT_TRUE(header(list, "Authorization")
                  .ends_with("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

TEST(Signature, ASessionsTokenIsSigned) {
  Credentials session = kExample;
  session.token = "a token";
  const auto headers = signed_headers({"GET", "h", "/", {}}, sha256_text({}), session, "r", kDay);
  EXPECT_EQ(header(headers, "x-amz-security-token"), "a token");
  EXPECT_NE(header(headers, "Authorization").find(";x-amz-security-token,"), std::string::npos);
}

TEST(Signature, NamesAreEncoded) {
  EXPECT_EQ(percent_encoded("a b/ü+~", true), "a%20b/%C3%BC%2B~");
  EXPECT_EQ(percent_encoded("a/b", false), "a%2Fb");
  EXPECT_EQ(query_text({{"uploadId", "x=/"}, {"partNumber", "2"}}),
            "partNumber=2&uploadId=x%3D%2F");
}

}  // namespace
}  // namespace intarsia::checkpoint
