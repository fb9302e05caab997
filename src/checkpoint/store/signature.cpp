#include "checkpoint/store/signature.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <ctime>

#include "base/text.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::size_t kHashBytes = 32;
using Hash = std::array<unsigned char, kHashBytes>;

std::string hex(std::span<const unsigned char> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const unsigned char byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

Hash hmac(std::span<const unsigned char> key, std::string_view text) {
  Hash out{};
  ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.data(), nullptr);
  return out;
}

std::string time_text(std::chrono::system_clock::time_point now) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  std::array<char, 17> text{};
  std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &parts);
  return text.data();
}

}  // namespace

std::string percent_encoded(std::string_view text, bool keep_slashes) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  for (const char each : text) {
    const auto byte = static_cast<unsigned char>(each);
    const bool is_plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                          (byte >= '0' && byte <= '9') || byte == '-' || byte == '.' ||
                          byte == '_' || byte == '~' || (keep_slashes && byte == '/');
    out += is_plain ? std::string(1, each) : concat('%', kDigits[byte >> 4], kDigits[byte & 15]);
  }
  return out;
}

std::string query_text(const std::map<std::string, std::string>& query) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : query) {
    parts.push_back(concat(percent_encoded(name, false), '=', percent_encoded(value, false)));
  }
  return join(parts, "&");
}

std::string sha256_text(std::span<const std::byte> bytes) {
  Hash out{};
  unsigned length = 0;
  ::EVP_Digest(bytes.data(), bytes.size(), out.data(), &length, ::EVP_sha256(), nullptr);
  return hex(out);
}

std::vector<std::pair<std::string, std::string>> signed_headers(
    const SignedRequest& request, const std::string& body_hash, const Credentials& credentials,
    const std::string& region, std::chrono::system_clock::time_point now) {
  const std::string time = time_text(now);
  const std::string day = time.substr(0, 8);
  std::vector<std::pair<std::string, std::string>> headers{{"x-amz-content-sha256", body_hash},
                                                           {"x-amz-date", time}};
  if (!credentials.token.empty()) headers.emplace_back("x-amz-security-token", credentials.token);
  std::string lines = concat("host:", request.host, '\n');
  std::string names = "host";
  for (const auto& [name, value] : headers) {
    lines += concat(name, ':', value, '\n');
    names += concat(';', name);
  }
  const std::string canonical =
      concat(request.method, '\n', request.path, '\n', query_text(request.query), '\n', lines, '\n',
             names, '\n', body_hash);
  const std::string scope = concat(day, '/', region, "/s3/aws4_request");
  const std::string to_sign = concat("AWS4-HMAC-SHA256\n", time, '\n', scope, '\n',
                                     sha256_text(std::as_bytes(std::span(canonical))));
  const std::string first = "AWS4" + credentials.secret;
  Hash key = hmac({reinterpret_cast<const unsigned char*>(first.data()), first.size()}, day);
  for (const std::string_view part :
       {std::string_view(region), std::string_view("s3"), std::string_view("aws4_request")}) {
    key = hmac(key, part);
  }
  headers.emplace_back("Authorization",
                       concat("AWS4-HMAC-SHA256 Credential=", credentials.key, '/', scope,
                              ", SignedHeaders=", names, ", Signature=", hex(hmac(key, to_sign))));
  return headers;
}

}  // namespace intarsia::checkpoint
