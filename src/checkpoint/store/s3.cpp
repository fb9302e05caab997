#include "checkpoint/store/s3.h"

#include <algorithm>
#include <random>
#include <thread>

#include "base/text.h"
#include "checkpoint/store/xml.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::string_view kWhere = "checkpoint";
constexpr std::string_view kScheme = "s3://";

/// Where requests for a bucket go.
struct Address {
  std::string scheme;
  std::string host;
  std::string path;  ///< before the key
};

Address address_of(const StoreSettings& settings, const std::string& bucket) {
  if (settings.endpoint.empty()) {
    return {"https://", concat(bucket, ".s3.", settings.region, ".amazonaws.com"), "/"};
  }
  const std::size_t begin = settings.endpoint.find("://");
  if (begin == settings.endpoint.npos) {
    fail<ValueError>(kWhere, "AWS_ENDPOINT_URL is '", settings.endpoint,
                     "', which begins neither with http:// nor with https://");
  }
  return {settings.endpoint.substr(0, begin + 3), settings.endpoint.substr(begin + 3),
          concat('/', percent_encoded(bucket, false), '/')};
}

/// Whether the same request may be answered otherwise a little later.
bool may_help_again(const HttpAnswer& answer) {
  switch (answer.status) {
    case 408:
    case 409:  // another request for the object was under way
    case 425:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return true;
    case 400:
      return element_text(answer.body, "Code") == "RequestTimeout";
    default:
      return false;
  }
}

/// Twice as long each time, and never the same for all ranks.
void pause_before_try(int number) {
  constexpr double kFirst = 0.1;
  constexpr double kMost = 5.0;
  thread_local std::minstd_rand random{std::random_device{}()};
  const double most = std::min(kMost, kFirst * static_cast<double>(1 << std::min(number, 10)));
  std::this_thread::sleep_for(
      std::chrono::duration<double>(std::uniform_real_distribution(most / 2, most)(random)));
}

std::string reason_of(const HttpAnswer& answer) {
  const std::string code = element_text(answer.body, "Code");
  const std::string message = element_text(answer.body, "Message");
  return concat("status ", answer.status, code.empty() ? "" : concat(", ", code),
                message.empty() ? "" : concat(": ", message));
}

}  // namespace

Object Object::parse(const std::string& path) {
  const std::string_view rest =
      std::string_view(path).substr(std::min(kScheme.size(), path.size()));
  const std::size_t slash = rest.find('/');
  if (!path.starts_with(kScheme) || rest.empty() || slash == 0) {
    fail<ValueError>(kWhere, "'", path, "' is not of the form s3://bucket/prefix");
  }
  if (slash == rest.npos) return {std::string(rest), {}};
  return {std::string(rest.substr(0, slash)), std::string(rest.substr(slash + 1))};
}

std::string Object::to_string() const { return concat(kScheme, bucket, '/', key); }

struct S3::Call {
  std::string what;   ///< for messages: `read`, `upload of part 3`
  Object about = {};  ///< for messages, where it is not the object
  std::string method;
  Object object;
  std::map<std::string, std::string> query = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::span<const std::byte> body = {};
  std::span<std::byte> into = {};
  /// Statuses that are answers, beside those from 200 to 299.
  std::vector<long> also = {};
  /// Whether an answer of status 200 is one.
  bool (*is_good)(const HttpAnswer&) = [](const HttpAnswer&) { return true; };
};

StoreSettings S3::settings() {
  constexpr auto kFresh = std::chrono::minutes(1);
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (!settings_ || now - found_at_ > kFresh) {
    settings_ = find_();
    found_at_ = now;
  }
  return *settings_;
}

HttpAnswer S3::ask(const Call& call) {
  const std::string body_hash = sha256_text(call.body);
  std::string reason;
  int tried = 0;
  while (true) {
    const StoreSettings settings = this->settings();
    const Address address = address_of(settings, call.object.bucket);
    const SignedRequest to_sign{call.method, address.host,
                                address.path + percent_encoded(call.object.key, true), call.query};
    HttpRequest request{
        .method = call.method,
        .url = concat(address.scheme, address.host, to_sign.path),
        .headers = signed_headers(to_sign, body_hash, settings.credentials, settings.region,
                                  std::chrono::system_clock::now()),
        .body = call.body,
        .into = call.into,
        .stall_seconds = settings.stall_seconds};
    if (!call.query.empty()) request.url += concat('?', query_text(call.query));
    request.headers.insert(request.headers.end(), call.headers.begin(), call.headers.end());
    bool again = true;
    ++tried;
    try {
      const HttpAnswer answer = http_.exchange(request);
      const bool is_success = answer.status >= 200 && answer.status < 300;
      if (is_success && answer.received == call.into.size() && call.is_good(answer)) return answer;
      if (std::find(call.also.begin(), call.also.end(), answer.status) != call.also.end()) {
        return answer;
      }
      reason = is_success && answer.received != call.into.size()
                   ? concat(answer.received, " of ", call.into.size(), " bytes came")
                   : reason_of(answer);
      again = is_success || may_help_again(answer);
    } catch (const HttpTrouble& trouble) {
      reason = trouble.what();
    }
    if (!again || tried >= settings.tries) break;
    pause_before_try(tried);
  }
  const Object& about = call.about.bucket.empty() ? call.object : call.about;
  fail<FileError>(kWhere, about.to_string(), ": ", call.what, " failed",
                  tried > 1 ? concat(" ", tried, " times") : "", ": ", reason);
}

std::optional<S3::Head> S3::head(const Object& object) {
  const HttpAnswer answer =
      ask({.what = "looking at it", .method = "HEAD", .object = object, .also = {404}});
  if (answer.status == 404) return std::nullopt;
  const auto header = [&](const char* name) {
    const auto found = answer.headers.find(name);
    return found == answer.headers.end() ? std::string() : found->second;
  };
  return Head{std::strtoull(header("content-length").c_str(), nullptr, 10), header("etag")};
}

void S3::get(const Object& object, const Head& head, std::uint64_t offset,
             std::span<std::byte> into) {
  if (into.empty()) return;
  if (offset + into.size() > head.bytes) {
    fail<FileError>(kWhere, object.to_string(), ": ends at byte ", head.bytes);
  }
  Call call{.what = concat("reading bytes ", offset, " to ", offset + into.size() - 1),
            .method = "GET",
            .object = object,
            .headers = {{"Range", concat("bytes=", offset, '-', offset + into.size() - 1)}},
            .into = into};
  if (!head.tag.empty()) call.headers.emplace_back("If-Match", head.tag);
  ask(call);
}

void S3::put(const Object& object, std::span<const std::byte> bytes) {
  ask({.what = concat("writing ", bytes.size(), " bytes"),
       .method = "PUT",
       .object = object,
       .body = bytes});
}

bool S3::put_new(const Object& object, std::span<const std::byte> bytes) {
  return ask({.what = concat("writing ", bytes.size(), " bytes"),
              .method = "PUT",
              .object = object,
              .headers = {{"If-None-Match", "*"}},
              .body = bytes,
              .also = {412}})
             .status != 412;
}

void S3::remove(const Object& object) {
  ask({.what = "removing it", .method = "DELETE", .object = object, .also = {404}});
}

S3::Listing S3::list(const Object& prefix, bool deep) {
  Listing out;
  std::string token;
  do {
    Call call{.what = "listing",
              .about = prefix,
              .method = "GET",
              .object = {prefix.bucket, {}},
              .query = {{"list-type", "2"}, {"prefix", prefix.key}},
              .is_good = [](const HttpAnswer& answer) {
                return answer.body.find("</ListBucketResult>") != std::string::npos;
              }};
    if (!deep) call.query["delimiter"] = "/";
    if (!token.empty()) call.query["continuation-token"] = token;
    const HttpAnswer answer = ask(call);
    for (const auto each : elements(answer.body, "Contents")) {
      out.keys.push_back(element_text(each, "Key"));
    }
    for (const auto each : elements(answer.body, "CommonPrefixes")) {
      out.folders.push_back(element_text(each, "Prefix"));
    }
    token = element_text(answer.body, "IsTruncated") == "true"
                ? element_text(answer.body, "NextContinuationToken")
                : std::string();
  } while (!token.empty());
  return out;
}

std::uint64_t S3::part_bytes() {
  return static_cast<std::uint64_t>(settings().part_mebibytes) << 20;
}

std::string S3::begin_upload(const Object& object) {
  const HttpAnswer answer = ask({.what = "beginning an upload",
                                 .method = "POST",
                                 .object = object,
                                 .query = {{"uploads", ""}},
                                 .is_good = [](const HttpAnswer& each) {
                                   return !element_text(each.body, "UploadId").empty();
                                 }});
  return element_text(answer.body, "UploadId");
}

std::string S3::upload_part(const Object& object, const std::string& upload, int number,
                            std::span<const std::byte> bytes) {
  return ask({.what = concat("upload of part ", number, " (", bytes.size(), " bytes)"),
              .method = "PUT",
              .object = object,
              .query = {{"partNumber", std::to_string(number)}, {"uploadId", upload}},
              .body = bytes,
              .is_good = [](const HttpAnswer& each) { return each.headers.contains("etag"); }})
      .headers.at("etag");
}

void S3::complete_upload(const Object& object, const std::string& upload,
                         std::span<const std::string> tags, std::uint64_t bytes) {
  std::string body = "<CompleteMultipartUpload>";
  for (std::size_t i = 0; i < tags.size(); ++i) {
    body += concat("<Part><PartNumber>", i + 1, "</PartNumber><ETag>", xml_encoded(tags[i]),
                   "</ETag></Part>");
  }
  body += "</CompleteMultipartUpload>";
  const HttpAnswer answer = ask({.what = concat("joining ", tags.size(), " parts"),
                                 .method = "POST",
                                 .object = object,
                                 .query = {{"uploadId", upload}},
                                 .body = std::as_bytes(std::span(body)),
                                 .also = {404},
                                 .is_good = [](const HttpAnswer& each) {
                                   return each.body.find("<Error>") == std::string::npos;
                                 }});
  // A store that joined them and was not heard knows nothing of them when it is asked again.
  const auto made = head(object);
  if (made && made->bytes == bytes) return;
  fail<FileError>(kWhere, object.to_string(), ": joining ", tags.size(), " parts failed: ",
                  answer.status == 404 ? reason_of(answer) : "it has another length", ", not ",
                  bytes, " bytes");
}

void S3::abort_upload(const Object& object, const std::string& upload) {
  ask({.what = "giving up an upload",
       .method = "DELETE",
       .object = object,
       .query = {{"uploadId", upload}},
       .also = {404}});
}

std::vector<S3::Upload> S3::uploads(const Object& prefix) {
  const HttpAnswer answer = ask({.what = "listing uploads",
                                 .about = prefix,
                                 .method = "GET",
                                 .object = {prefix.bucket, {}},
                                 .query = {{"prefix", prefix.key}, {"uploads", ""}},
                                 .also = {404, 501}});
  std::vector<Upload> out;
  for (const auto each : elements(answer.body, "Upload")) {
    Object object{prefix.bucket, element_text(each, "Key")};
    if (!object.key.starts_with(prefix.key)) continue;
    out.push_back({std::move(object), element_text(each, "UploadId")});
  }
  return out;
}

}  // namespace intarsia::checkpoint
