// One request over HTTP, by libcurl.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace intarsia::checkpoint {

struct HttpRequest {
  std::string method;
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
  std::span<const std::byte> body = {};
  /// Where the answer's body goes if its status is 200 or 206; other bodies are kept as text.
  std::span<std::byte> into = {};
  double stall_seconds = 20;
};

struct HttpAnswer {
  long status = 0;
  /// By names in small letters.
  std::map<std::string, std::string> headers = {};
  std::string body = {};
  /// How many bytes went to `into`.
  std::size_t received = 0;
};

/// No answer, or not all of it: why.
class HttpTrouble : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Keeps connections and uses them again. THREADS: may be used by several at once.
class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Throws HttpTrouble.
  HttpAnswer exchange(const HttpRequest& request);

 private:
  class Handles;
  std::unique_ptr<Handles> handles_;
};

}  // namespace intarsia::checkpoint
