// Answering: a server on loopback that gives the answers of a test, one for each request.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/text.h"

namespace intarsia::testing {

class Answering {
 public:
  /// Gets a request, with its body, and its number from 0 on; gives all bytes of the answer, after
  /// which the connection is closed.
  using Answer = std::function<std::string(const std::string& request, std::size_t number)>;

  explicit Answering(Answer answer) : answer_(std::move(answer)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    ::bind(listener_, reinterpret_cast<sockaddr*>(&address), length);
    ::listen(listener_, 8);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~Answering() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

  std::string url() const { return concat("http://127.0.0.1:", port_); }
  std::vector<std::string> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

  static std::string text(const char* status, const std::string& body, const char* headers = "") {
    return concat("HTTP/1.1 ", status, "\r\n", headers, "Content-Length: ", body.size(),
                  "\r\nConnection: close\r\n\r\n", body);
  }

 private:
  void serve() {
    while (true) {
      const int connection = ::accept(listener_, nullptr, nullptr);
      if (connection < 0) return;
      const std::string request = received(connection);
      std::size_t number = 0;
      {
        const std::lock_guard lock(mutex_);
        number = requests_.size();
        requests_.push_back(request);
      }
      const std::string answer = answer_(request, number);
      static_cast<void>(::send(connection, answer.data(), answer.size(), MSG_NOSIGNAL));
      ::close(connection);
    }
  }

  static std::string received(int connection) {
    std::string out;
    std::string buffer(1U << 16, '\0');
    while (true) {
      const std::size_t end = out.find("\r\n\r\n");
      if (end != out.npos) {
        const std::size_t at = out.find("Content-Length: ");
        const std::size_t body = at < end ? std::strtoul(out.c_str() + at + 16, nullptr, 10) : 0;
        if (out.size() >= end + 4 + body) return out;
      }
      const auto got = ::recv(connection, buffer.data(), buffer.size(), 0);
      if (got <= 0) return out;
      out.append(buffer, 0, static_cast<std::size_t>(got));
    }
  }

  Answer answer_;
  int listener_ = -1;
  int port_ = 0;
  std::mutex mutex_;
  std::vector<std::string> requests_;
  std::thread thread_;
};

}  // namespace intarsia::testing
