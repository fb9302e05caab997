#include "checkpoint/store/store_files.h"

#include <algorithm>
#include <deque>
#include <future>
#include <limits>
#include <optional>

#include "base/text.h"
#include "checkpoint/store/read_ahead.h"
#include "checkpoint/store/s3.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::string_view kWhere = "checkpoint";

[[noreturn]] void cannot(const std::string& path, std::string_view what) {
  fail<UnsupportedError>(kWhere, path, ": object stores cannot ", what);
}

/// The object, with a slash at its end.
Object folder_of(const std::string& path) {
  Object out = Object::parse(path);
  if (!out.key.empty() && !out.key.ends_with('/')) out.key += '/';
  return out;
}

/// A new object. Parts are uploaded while the next one is filled; one that is short goes in one
/// request.
class StoreOutput : public OutputFile {
 public:
  StoreOutput(S3& store, const std::string& path)
      : store_(store), object_(Object::parse(path)), part_bytes_(store.part_bytes()) {}

  ~StoreOutput() override {
    for (auto& each : under_way_) each.wait();
    if (upload_.empty()) return;
    try {
      store_.abort_upload(object_, upload_);
    } catch (...) {  // NOLINT(bugprone-empty-catch): swept later
    }
  }

  void expect(std::uint64_t bytes) override {
    // There may be 10,000 parts.
    constexpr std::uint64_t kMostParts = 9000;
    constexpr std::uint64_t kUnit = std::uint64_t{1} << 20;
    part_bytes_ = std::max(part_bytes_, (bytes / kMostParts + kUnit) / kUnit * kUnit);
  }

  void append(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      if (part_.size() == part_bytes_) send_part();
      if (part_.empty()) part_.reserve(part_bytes_);
      const auto now = bytes.first(std::min(bytes.size(), part_bytes_ - part_.size()));
      part_.insert(part_.end(), now.begin(), now.end());
      bytes_ += now.size();
      bytes = bytes.subspan(now.size());
    }
  }
  void append_all(std::span<const std::span<const std::byte>> parts) override {
    for (const auto& part : parts) append(part);
  }
  void write_at(std::uint64_t, std::span<const std::byte>) override {
    cannot(object_.to_string(), "write at offsets");
  }

  void sync() override {
    if (upload_.empty()) return store_.put(object_, part_);
    if (!part_.empty()) send_part();
    while (!under_way_.empty()) finish_first();
    store_.complete_upload(object_, upload_, tags_, bytes_);
    upload_.clear();
  }

 private:
  void send_part() {
    constexpr std::size_t kAtOnce = 3;
    if (upload_.empty()) upload_ = store_.begin_upload(object_);
    while (under_way_.size() >= kAtOnce) finish_first();
    const int number = static_cast<int>(tags_.size() + under_way_.size()) + 1;
    auto send = [this, number, part = std::move(part_)] {
      return store_.upload_part(object_, upload_, number, part);
    };
    under_way_.push_back(std::async(std::launch::async, std::move(send)));
    part_.clear();
  }

  void finish_first() {
    auto first = std::move(under_way_.front());
    under_way_.pop_front();
    tags_.push_back(first.get());
  }

  S3& store_;
  Object object_;
  std::uint64_t part_bytes_;
  std::vector<std::byte> part_;  // that is being filled
  std::uint64_t bytes_ = 0;
  std::string upload_;  // empty before the first part
  std::vector<std::string> tags_;
  std::deque<std::future<std::string>> under_way_;
};

class StoreInput : public InputFile {
 public:
  StoreInput(S3& store, const std::string& path) : store_(store), object_(Object::parse(path)) {
    const auto head = store_.head(object_);
    if (!head) fail<FileError>(kWhere, path, ": no such object");
    head_ = *head;
    ahead_.emplace(head_.bytes, [this](std::uint64_t offset, std::span<std::byte> into) {
      store_.get(object_, head_, offset, into);
    });
  }
  std::uint64_t bytes() const override { return head_.bytes; }
  void read(std::uint64_t offset, std::span<std::byte> into) const override {
    ahead_->read(offset, into);
  }

 private:
  S3& store_;
  Object object_;
  S3::Head head_;
  mutable std::optional<ReadAhead> ahead_;
};

class StoreFiles : public Files {
 public:
  std::unique_ptr<OutputFile> create(const std::string& path) override {
    return std::make_unique<StoreOutput>(store_, path);
  }
  std::unique_ptr<OutputFile> open_to_write(const std::string& path) override {
    cannot(path, "write at offsets, as the hf form does; save natively, and use `ckpt export`");
  }
  std::unique_ptr<InputFile> open(const std::string& path) override {
    return std::make_unique<StoreInput>(store_, path);
  }
  bool exists(const std::string& path) override {
    const Object object = Object::parse(path);
    if (!object.key.empty() && !object.key.ends_with('/') && store_.head(object)) return true;
    const S3::Listing below = store_.list(folder_of(path), false);
    return !below.keys.empty() || !below.folders.empty();
  }
  std::vector<std::string> list(const std::string& folder) override {
    const Object prefix = folder_of(folder);
    const S3::Listing below = store_.list(prefix, false);
    std::vector<std::string> names;
    for (const auto* list : {&below.keys, &below.folders}) {
      for (const std::string& key : *list) {
        std::string name = key.substr(prefix.key.size());
        if (name.ends_with('/')) name.pop_back();
        if (!name.empty()) names.push_back(std::move(name));
      }
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  void make_folder(const std::string&) override {}
  void rename(const std::string& from, const std::string&) override { cannot(from, "rename"); }
  void exchange(const std::string& a, const std::string&) override { cannot(a, "rename"); }
  void remove(const std::string& path) override {
    const Object object = Object::parse(path);
    const Object below = folder_of(path);
    sweep(path);
    for (const auto& key : store_.list(below, true).keys) store_.remove({object.bucket, key});
    if (!object.key.empty() && !object.key.ends_with('/')) store_.remove(object);
  }
  void sweep(const std::string& folder) override {
    for (const auto& each : store_.uploads(folder_of(folder))) {
      store_.abort_upload(each.object, each.id);
    }
  }
  void sync_folder(const std::string&) override {}
  std::uint64_t free_bytes(const std::string&) override {
    return std::numeric_limits<std::uint64_t>::max();
  }
  bool renames(const std::string&) override { return false; }

  void publish(const std::string& path, std::string_view text, bool replace) override {
    const Object object = Object::parse(path);
    const auto bytes = std::as_bytes(std::span(text));
    if (replace) return store_.put(object, bytes);
    if (store_.put_new(object, bytes)) return;
    // A store that took it and was not heard says that it is there when it is asked again.
    if (read_text(*this, path, std::numeric_limits<std::uint32_t>::max()) == text) return;
    fail<FileError>(kWhere, path, ": is there already");
  }

 private:
  S3 store_;
};

}  // namespace

Files& store_files(const std::string&) {
  static StoreFiles files;
  return files;
}

}  // namespace intarsia::checkpoint
