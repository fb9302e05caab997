// S3: objects in buckets, as S3, Ceph, R2, SeaweedFS and others have them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/store/http.h"
#include "checkpoint/store/settings.h"

namespace intarsia::checkpoint {

struct Object {
  std::string bucket;
  std::string key;

  /// Of `s3://bucket/key`. ValueError for anything else.
  static Object parse(const std::string& path);
  std::string to_string() const;
};

/// Every request has a deadline, and is tried again, with longer and longer pauses, where that may
/// help: no answer, an answer that breaks off, or a store that is busy. Failures are FileErrors
/// that name the object, what was asked, how often, and the store's reason; never credentials.
/// THREADS: may be used by several at once.
class S3 {
 public:
  using FindSettings = std::function<StoreSettings()>;
  /// Settings are found anew every minute: credentials of sessions change.
  explicit S3(FindSettings find = &StoreSettings::find) : find_(std::move(find)) {}

  struct Head {
    std::uint64_t bytes = 0;
    std::string tag;  ///< changes when the object does
  };
  /// nullopt where there is no such object.
  std::optional<Head> head(const Object& object);
  /// Reads a range of an object that is still the one that `head` saw.
  void get(const Object& object, const Head& head, std::uint64_t offset, std::span<std::byte> into);
  void put(const Object& object, std::span<const std::byte> bytes);
  /// In one step, unless there is such an object: false then.
  bool put_new(const Object& object, std::span<const std::byte> bytes);
  /// Also where there is none.
  void remove(const Object& object);

  struct Listing {
    std::vector<std::string> keys;
    std::vector<std::string> folders;  ///< what keys below have in common, with a last slash
  };
  /// What begins with the object's key; `deep`: all keys, instead of folders.
  Listing list(const Object& prefix, bool deep);

  /// How long parts should be.
  std::uint64_t part_bytes();
  /// Uploads in parts of at least 5 MiB, but for the last.
  std::string begin_upload(const Object& object);
  /// Gives the tag of the part.
  std::string upload_part(const Object& object, const std::string& upload, int number,
                          std::span<const std::byte> bytes);
  /// Makes the parts, numbered from 1 on, an object of so many bytes.
  void complete_upload(const Object& object, const std::string& upload,
                       std::span<const std::string> tags, std::uint64_t bytes);
  void abort_upload(const Object& object, const std::string& upload);
  struct Upload {
    Object object;
    std::string id;
  };
  /// Those that were begun and neither completed nor aborted.
  std::vector<Upload> uploads(const Object& prefix);

 private:
  struct Call;
  HttpAnswer ask(const Call& call);
  StoreSettings settings();

  FindSettings find_;
  HttpClient http_;
  std::mutex mutex_;
  std::optional<StoreSettings> settings_;
  std::chrono::steady_clock::time_point found_at_;
};

}  // namespace intarsia::checkpoint
