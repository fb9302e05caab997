#include "checkpoint/store/http.h"

#include <curl/curl.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/text.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::size_t kMostText = std::size_t{64} << 20;

/// One exchange: what libcurl's callbacks see.
struct Exchange {
  const HttpRequest& request;
  HttpAnswer& answer;
  CURL* handle;
  std::size_t sent = 0;

  static std::size_t send(char* to, std::size_t size, std::size_t count, void* self) {
    auto& exchange = *static_cast<Exchange*>(self);
    const auto left = exchange.request.body.subspan(exchange.sent);
    const std::size_t bytes = std::min(size * count, left.size());
    if (bytes > 0) std::memcpy(to, left.data(), bytes);
    exchange.sent += bytes;
    return bytes;
  }

  static int rewind(void* self, curl_off_t offset, int origin) {
    if (origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
    static_cast<Exchange*>(self)->sent = static_cast<std::size_t>(offset);
    return CURL_SEEKFUNC_OK;
  }

  static std::size_t receive(char* from, std::size_t size, std::size_t count, void* self) {
    auto& exchange = *static_cast<Exchange*>(self);
    const std::size_t bytes = size * count;
    long status = 0;
    ::curl_easy_getinfo(exchange.handle, CURLINFO_RESPONSE_CODE, &status);
    HttpAnswer& answer = exchange.answer;
    if ((status == 200 || status == 206) && !exchange.request.into.empty()) {
      const auto room = exchange.request.into.subspan(answer.received);
      if (bytes > room.size()) return 0;  // more than was asked for
      std::memcpy(room.data(), from, bytes);
      answer.received += bytes;
      return bytes;
    }
    if (answer.body.size() + bytes > kMostText) return 0;
    answer.body.append(from, bytes);
    return bytes;
  }

  static std::size_t header(char* from, std::size_t size, std::size_t count, void* self) {
    const std::string_view line(from, size * count);
    const std::size_t colon = line.find(':');
    if (colon != line.npos) {
      std::string name(line.substr(0, colon));
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char each) { return static_cast<char>(std::tolower(each)); });
      const std::size_t begin = std::min(line.find_first_not_of(" \t", colon + 1), line.size());
      const std::size_t end = line.find_last_not_of(" \t\r\n");
      if (begin <= end) {
        static_cast<Exchange*>(self)->answer.headers[name] =
            std::string(line.substr(begin, end - begin + 1));
      }
    }
    return size * count;
  }
};

/// Seconds for all of it, at a speed that nobody wants.
long deadline(const HttpRequest& request, long stall) {
  constexpr std::size_t kBytesPerSecond = std::size_t{256} << 10;
  const std::size_t bytes = std::max(request.body.size(), request.into.size());
  return 3 * stall + static_cast<long>(bytes / kBytesPerSecond);
}

}  // namespace

class HttpClient::Handles {
 public:
  ~Handles() {
    for (CURL* each : free_) ::curl_easy_cleanup(each);
  }

  CURL* take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return ::curl_easy_init();
    CURL* out = free_.back();
    free_.pop_back();
    return out;
  }
  void give_back(CURL* handle) {
    ::curl_easy_reset(handle);  // keeps its connections
    const std::lock_guard lock(mutex_);
    free_.push_back(handle);
  }

 private:
  std::mutex mutex_;
  std::vector<CURL*> free_;
};

HttpClient::HttpClient() : handles_(std::make_unique<Handles>()) {
  static const CURLcode once = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  static_cast<void>(once);
}

HttpClient::~HttpClient() = default;

HttpAnswer HttpClient::exchange(const HttpRequest& request) {
  const std::shared_ptr<CURL> handle(handles_->take(),
                                     [this](CURL* each) { handles_->give_back(each); });
  CURL* curl = handle.get();
  HttpAnswer answer;
  Exchange exchange{request, answer, curl};
  const auto set = [&](CURLoption option, auto value) { ::curl_easy_setopt(curl, option, value); };
  const auto stall = std::max(1L, std::lround(request.stall_seconds));
  std::shared_ptr<curl_slist> headers(::curl_slist_append(nullptr, "Expect:"),
                                      ::curl_slist_free_all);
  for (const auto& [name, value] : request.headers) {
    ::curl_slist_append(headers.get(), concat(name, ": ", value).c_str());
  }
  std::array<char, CURL_ERROR_SIZE> reason{};
  set(CURLOPT_ERRORBUFFER, reason.data());
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_CONNECTTIMEOUT, stall);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, stall);
  set(CURLOPT_TIMEOUT, deadline(request, stall));
  constexpr long kBuffer = 512L << 10;
  set(CURLOPT_BUFFERSIZE, kBuffer);
  set(CURLOPT_UPLOAD_BUFFERSIZE, kBuffer);
  set(CURLOPT_HEADERFUNCTION, &Exchange::header);
  set(CURLOPT_HEADERDATA, &exchange);
  set(CURLOPT_WRITEFUNCTION, &Exchange::receive);
  set(CURLOPT_WRITEDATA, &exchange);
  if (request.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (!request.body.empty() || request.method == "PUT" || request.method == "POST") {
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set(CURLOPT_READFUNCTION, &Exchange::send);
    set(CURLOPT_READDATA, &exchange);
    set(CURLOPT_SEEKFUNCTION, &Exchange::rewind);
    set(CURLOPT_SEEKDATA, &exchange);
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  } else {
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  const CURLcode code = ::curl_easy_perform(curl);
  if (code != CURLE_OK) {
    if (code == CURLE_OPERATION_TIMEDOUT) {
      throw HttpTrouble(concat("stalled: ", exchange.sent, " bytes were sent and ",
                               answer.received + answer.body.size(), " came (", reason.data(),
                               ')'));
    }
    throw HttpTrouble(reason[0] != '\0' ? reason.data() : ::curl_easy_strerror(code));
  }
  ::curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &answer.status);
  return answer;
}

}  // namespace intarsia::checkpoint
