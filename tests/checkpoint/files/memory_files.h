// MemoryFiles: a file system that forgets, at a crash, what was not synced, and that fails where a
// test says.
#pragma once

#include <functional>
#include <map>
#include <mutex>

#include "base/text.h"
#include "checkpoint/files/files.h"
#include "intarsia/error.h"

namespace intarsia::testing {

using Bytes = std::vector<std::byte>;

/// What ends a process in such a test.
struct Crash {};

class MemoryFiles : public checkpoint::Files {
 public:
  /// Called before each operation that changes something, with its number from 0 on and its name;
  /// may throw a Crash, after which every operation does, or a FileError.
  std::function<void(std::size_t, const std::string&)> before = [](std::size_t, const auto&) {};
  /// Appends only the first half of what is given when `before` throws.
  bool torn = false;
  std::uint64_t room = std::uint64_t{1} << 40;

  MemoryFiles() {
    make_folder("/root");
    sync_folder("/");
    operations_ = 0;
  }

  std::size_t operations() const { return operations_; }

  /// The machine goes down and comes up again. Not `forgets`: all that was written is there.
  void restart(bool forgets) {
    crashed_ = false;
    operations_ = 0;
    before = [](std::size_t, const auto&) {};
    if (forgets) forget(*top_);
  }

  /// The bytes of a file, to be damaged.
  Bytes& bytes_of(const std::string& path) { return node(path)->bytes; }
  void swap_contents(const std::string& a, const std::string& b) {
    std::swap(node(a)->bytes, node(b)->bytes);
  }

  std::unique_ptr<checkpoint::OutputFile> create(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    count("create " + path);
    auto& place = parent(path)->entries[name(path)];
    if (place) fail<FileError>("checkpoint", path, ": exists");
    place = std::make_shared<Node>();
    return std::make_unique<Output>(*this, place, path);
  }
  std::unique_ptr<checkpoint::OutputFile> open_to_write(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    alive();
    return std::make_unique<Output>(*this, node(path), path);
  }
  std::unique_ptr<checkpoint::InputFile> open(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    alive();
    const auto found = find(path);
    if (!found || found->folder) fail<FileError>("checkpoint", path, ": no such file");
    return std::make_unique<Input>(found, path);
  }
  bool exists(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    alive();
    return find(path) != nullptr;
  }
  std::vector<std::string> list(const std::string& folder) override {
    const std::lock_guard lock(mutex_);
    alive();
    std::vector<std::string> names;
    for (const auto& [each, ignored] : node(folder)->entries) names.push_back(each);
    return names;
  }
  void make_folder(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    count("make_folder " + path);
    auto& place = parent(path)->entries[name(path)];
    if (place) fail<FileError>("checkpoint", path, ": exists");
    place = std::make_shared<Node>();
    place->folder = true;
  }
  void rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    count("rename " + from);
    if (find(to)) fail<FileError>("checkpoint", to, ": exists");
    parent(to)->entries[name(to)] = node(from);
    parent(from)->entries.erase(name(from));
  }
  void exchange(const std::string& a, const std::string& b) override {
    const std::lock_guard lock(mutex_);
    count("exchange " + a);
    std::swap(parent(a)->entries.at(name(a)), parent(b)->entries.at(name(b)));
  }
  void remove(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    count("remove " + path);
    if (const auto found = find(path); found && found->folder) empty(*found, path);
    parent(path)->entries.erase(name(path));
  }
  void sync_folder(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    count("sync_folder " + path);
    const auto folder = path == "/" ? top_ : node(path);
    folder->durable_entries = folder->entries;
  }
  std::uint64_t free_bytes(const std::string&) override { return room; }

 private:
  struct Node {
    bool folder = false;
    Bytes bytes = {};
    Bytes durable_bytes = {};
    std::map<std::string, std::shared_ptr<Node>> entries = {};
    std::map<std::string, std::shared_ptr<Node>> durable_entries = {};
  };

  class Output : public checkpoint::OutputFile {
   public:
    Output(MemoryFiles& files, std::shared_ptr<Node> node, std::string path)
        : files_(files), node_(std::move(node)), path_(std::move(path)) {}
    void append(std::span<const std::byte> bytes) override {
      const std::lock_guard lock(files_.mutex_);
      put(node_->bytes.size(), bytes);
    }
    void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
      const std::lock_guard lock(files_.mutex_);
      put(offset, bytes);
    }
    void sync() override {
      const std::lock_guard lock(files_.mutex_);
      files_.count("sync " + path_);
      node_->durable_bytes = node_->bytes;
    }

   private:
    void put(std::uint64_t offset, std::span<const std::byte> bytes) {
      std::exception_ptr error;
      try {
        files_.count("write " + path_);
      } catch (...) {
        error = std::current_exception();
        bytes = bytes.first(files_.torn ? bytes.size() / 2 : 0);
      }
      if (!bytes.empty()) {
        node_->bytes.resize(std::max<std::size_t>(node_->bytes.size(), offset + bytes.size()));
        std::copy(bytes.begin(), bytes.end(),
                  node_->bytes.begin() + static_cast<std::ptrdiff_t>(offset));
      }
      if (error) std::rethrow_exception(error);
    }

    MemoryFiles& files_;
    std::shared_ptr<Node> node_;
    std::string path_;
  };

  class Input : public checkpoint::InputFile {
   public:
    Input(std::shared_ptr<Node> node, std::string path)
        : node_(std::move(node)), path_(std::move(path)) {}
    std::uint64_t bytes() const override { return node_->bytes.size(); }
    void read(std::uint64_t offset, std::span<std::byte> into) const override {
      if (offset + into.size() > node_->bytes.size()) {
        fail<FileError>("checkpoint", path_, ": ends at byte ", node_->bytes.size());
      }
      std::copy_n(node_->bytes.begin() + static_cast<std::ptrdiff_t>(offset), into.size(),
                  into.begin());
    }

   private:
    std::shared_ptr<Node> node_;
    std::string path_;
  };

  void alive() const {
    if (crashed_) throw Crash{};
  }
  void count(const std::string& operation) {
    alive();
    try {
      before(operations_++, operation);
    } catch (const Crash&) {
      crashed_ = true;
      throw;
    }
  }
  static std::string name(const std::string& path) { return path.substr(path.rfind('/') + 1); }
  std::shared_ptr<Node> parent(const std::string& path) {
    const auto slash = path.rfind('/');
    return slash == 0 ? top_ : node(path.substr(0, slash));
  }
  std::shared_ptr<Node> node(const std::string& path) {
    const auto found = find(path);
    if (!found) fail<FileError>("checkpoint", path, ": not there");
    return found;
  }
  std::shared_ptr<Node> find(const std::string& path) {
    auto at = top_;
    for (std::size_t begin = 1; begin <= path.size();) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      const auto found = at->entries.find(path.substr(begin, end - begin));
      if (found == at->entries.end()) return nullptr;
      at = found->second;
      begin = end + 1;
    }
    return at;
  }
  /// One file after the other; that they are gone reaches the disk before anything else does.
  void empty(Node& folder, const std::string& path) {
    while (!folder.entries.empty()) {
      const std::string each = folder.entries.begin()->first;
      count("remove " + path + "/" + each);
      folder.entries.erase(each);
      folder.durable_entries.erase(each);
    }
  }
  static void forget(Node& node) {
    node.bytes = node.durable_bytes;
    node.entries = node.durable_entries;
    for (const auto& [ignored, entry] : node.entries) forget(*entry);
  }

  std::mutex mutex_;
  std::shared_ptr<Node> top_ = std::make_shared<Node>(Node{.folder = true});
  std::size_t operations_ = 0;
  bool crashed_ = false;
};

}  // namespace intarsia::testing
