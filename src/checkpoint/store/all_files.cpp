#include "checkpoint/store/all_files.h"

#include "checkpoint/store/store_files.h"

namespace intarsia::checkpoint {
namespace {

/// Asks the one to which a path belongs.
class AllFiles : public Files {
 public:
  std::unique_ptr<OutputFile> create(const std::string& path) override {
    return of(path).create(path);
  }
  std::unique_ptr<OutputFile> open_to_write(const std::string& path) override {
    return of(path).open_to_write(path);
  }
  std::unique_ptr<InputFile> open(const std::string& path) override { return of(path).open(path); }
  bool exists(const std::string& path) override { return of(path).exists(path); }
  std::vector<std::string> list(const std::string& folder) override {
    return of(folder).list(folder);
  }
  void make_folder(const std::string& path) override { of(path).make_folder(path); }
  void rename(const std::string& from, const std::string& to) override {
    of(from).rename(from, to);
  }
  void exchange(const std::string& a, const std::string& b) override { of(a).exchange(a, b); }
  void remove(const std::string& path) override { of(path).remove(path); }
  void sync_folder(const std::string& path) override { of(path).sync_folder(path); }
  std::uint64_t free_bytes(const std::string& folder) override {
    return of(folder).free_bytes(folder);
  }
  void sweep(const std::string& folder) override { of(folder).sweep(folder); }
  bool renames(const std::string& path) override { return of(path).renames(path); }
  void publish(const std::string& path, std::string_view text, bool replace) override {
    of(path).publish(path, text, replace);
  }

 private:
  static Files& of(const std::string& path) {
    return is_in_store(path) ? store_files(path) : local_files();
  }
};

}  // namespace

bool is_in_store(const std::string& path) { return path.starts_with("s3://"); }

Files& all_files() {
  static AllFiles files;
  return files;
}

}  // namespace intarsia::checkpoint
