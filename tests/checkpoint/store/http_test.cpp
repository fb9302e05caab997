#include "checkpoint/store/http.h"

#include <gtest/gtest.h>

#include "checkpoint/store/answering.h"

namespace intarsia::checkpoint {
namespace {

using intarsia::testing::Answering;

TEST(Http, ARequestIsSentAndItsAnswerRead) {
  Answering server([](const std::string&, std::size_t) {
    return Answering::text("200 OK", "hello", "ETag: \"x\"\r\n");
  });
  HttpClient client;
  const std::string body = "body";
  const HttpAnswer answer = client.exchange({.method = "PUT",
                                             .url = server.url() + "/a%20b?c=d",
                                             .headers = {{"x-me", "1"}},
                                             .body = std::as_bytes(std::span(body))});
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "hello");
  EXPECT_EQ(answer.headers.at("etag"), "\"x\"");
  const std::string request = server.requests().at(0);
  EXPECT_TRUE(request.starts_with("PUT /a%20b?c=d HTTP/1.1\r\n")) << request;
  EXPECT_NE(request.find("\r\nx-me: 1\r\n"), request.npos) << request;
  EXPECT_EQ(request.find("Expect"), request.npos) << request;
  EXPECT_TRUE(request.ends_with("\r\n\r\nbody")) << request;
}

TEST(Http, ABodyGoesWhereItIsWanted) {
  Answering server([](const std::string&, std::size_t number) {
    return Answering::text(number == 0 ? "206 Partial Content" : "503 Busy", "12345");
  });
  HttpClient client;
  std::string into(5, ' ');
  const HttpRequest request{
      .method = "GET", .url = server.url() + "/", .into = std::as_writable_bytes(std::span(into))};
  EXPECT_EQ(client.exchange(request).received, 5U);
  EXPECT_EQ(into, "12345");
  const HttpAnswer busy = client.exchange(request);
  EXPECT_EQ(busy.status, 503);
  EXPECT_EQ(busy.received, 0U);
  EXPECT_EQ(busy.body, "12345");
}

TEST(Http, WhatBreaksOffIsTrouble) {
  Answering server([](const std::string&, std::size_t number) -> std::string {
    if (number == 0) return "";
    if (number == 1) return "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123";
    return Answering::text("200 OK", "more than was asked for");
  });
  HttpClient client;
  std::string into(10, ' ');
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(client.exchange({.method = "GET",
                                  .url = server.url() + "/",
                                  .into = std::as_writable_bytes(std::span(into))}),
                 HttpTrouble);
  }
  EXPECT_THROW(client.exchange({.method = "GET", .url = "file:///etc/passwd"}), HttpTrouble);
}

TEST(Http, AStallEnds) {
  Answering server([](const std::string&, std::size_t) {
    std::this_thread::sleep_for(std::chrono::seconds(3));
    return Answering::text("200 OK", "");
  });
  HttpClient client;
  try {
    client.exchange({.method = "GET", .url = server.url() + "/", .stall_seconds = 1});
    FAIL() << "it did not end";
  } catch (const HttpTrouble& trouble) {
    EXPECT_TRUE(std::string(trouble.what()).starts_with("stalled: 0 bytes were sent and 0 came"))
        << trouble.what();
  }
}

}  // namespace
}  // namespace intarsia::checkpoint
