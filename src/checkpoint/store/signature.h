// Signature Version 4 of S3: what a request says about who sends it.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace intarsia::checkpoint {

/// Who asks. Never part of a message.
struct Credentials {
  std::string key;
  std::string secret;
  std::string token;  ///< of a session; may be empty
};

/// A request as it is signed.
struct SignedRequest {
  std::string method;
  std::string host;  ///< with its port unless it is the usual one
  std::string path;  ///< encoded, from the first slash on
  std::map<std::string, std::string> query = {};
};

/// All but letters, digits and `-._~`, and slashes if they are kept, as `%2F`.
std::string percent_encoded(std::string_view text, bool keep_slashes);

/// The encoded query, in the order of its names, without a question mark.
std::string query_text(const std::map<std::string, std::string>& query);

/// 64 hexadecimal digits.
std::string sha256_text(std::span<const std::byte> bytes);

/// The headers that sign a request: time, hash of the body, token, authorization.
std::vector<std::pair<std::string, std::string>> signed_headers(
    const SignedRequest& request, const std::string& body_hash, const Credentials& credentials,
    const std::string& region, std::chrono::system_clock::time_point now);

}  // namespace intarsia::checkpoint
