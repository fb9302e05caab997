#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/text.h"
#include "checkpoint/files/files.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

[[noreturn]] void fail_with(int error, const std::string& path, std::string_view what) {
  fail<FileError>("checkpoint", path, ": ", what, ": ",
                  std::error_code(error, std::generic_category()).message());
}

/// Calls a function of the system again as long as a signal ends it.
template <class Call>
auto retried(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) {
    constexpr mode_t kMode = 0666;
    number_ = retried([&] { return ::open(path.c_str(), flags | O_CLOEXEC, kMode); });
    if (number_ < 0) fail_with(errno, path, "cannot be opened");
  }
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_ = -1;
};

/// Whether all who write to a file share its pages in the memory of this machine.
bool has_local_pages(int descriptor) {
  struct statfs status {};
  if (::fstatfs(descriptor, &status) != 0) return false;
  constexpr std::array<std::uint64_t, 4> kLocal{EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC,
                                                BTRFS_SUPER_MAGIC, TMPFS_MAGIC};
  const auto found = static_cast<std::uint64_t>(status.f_type);
  return std::find(kLocal.begin(), kLocal.end(), found) != kLocal.end();
}

class LocalOutput : public OutputFile {
 public:
  LocalOutput(const std::string& path, int flags)
      : path_(path), file_(path, O_RDWR | flags) {}  // mapped pages are read too

  void append(std::span<const std::byte> bytes) override { append_all(std::span(&bytes, 1)); }

  void append_all(std::span<const std::span<const std::byte>> parts) override {
    const std::uint64_t begin = written_;
    std::vector<iovec> left;
    for (const auto& part : parts) {
      // The system does not write to it.
      left.push_back({const_cast<std::byte*>(part.data()), part.size()});  // NOLINT
    }
    for (std::size_t first = 0; first < left.size();) {
      const auto count = static_cast<int>(std::min<std::size_t>(left.size() - first, IOV_MAX));
      const auto done = retried([&] { return ::writev(file_.number(), &left[first], count); });
      if (done < 0) fail_with(errno, path_, concat("cannot be written at byte ", written_));
      written_ += static_cast<std::uint64_t>(done);
      first = skip(left, first, static_cast<std::size_t>(done));
    }
    begin_sync(begin, written_);
  }

  void write_at(std::uint64_t offset, std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const auto done = retried([&] {
        return ::pwrite(file_.number(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
      });
      if (done < 0) fail_with(errno, path_, concat("cannot be written at byte ", offset));
      offset += static_cast<std::uint64_t>(done);
      bytes = bytes.subspan(static_cast<std::size_t>(done));
    }
  }

  void write_runs(std::span<const FileRun> runs) override {
    if (runs.empty()) return;
    if (!are_short(runs) || !write_mapped(runs)) OutputFile::write_runs(runs);
    begin_sync(runs.front().offset, runs.back().offset + runs.back().bytes.size());
  }

  /// The first part that is not written, of which `bytes` more are.
  static std::size_t skip(std::vector<iovec>& parts, std::size_t first, std::size_t bytes) {
    while (first < parts.size() && bytes >= parts[first].iov_len) bytes -= parts[first++].iov_len;
    if (bytes > 0) {
      parts[first].iov_base = static_cast<std::byte*>(parts[first].iov_base) + bytes;
      parts[first].iov_len -= bytes;
    }
    return first;
  }

  void sync() override {
    if (retried([&] { return ::fsync(file_.number()); }) != 0) {
      fail_with(errno, path_, "cannot be brought to the disk");
    }
  }

 private:
  /// Whether calls of the system would take longer than the copying.
  static bool are_short(std::span<const FileRun> runs) {
    constexpr std::size_t kShort = std::size_t{32} << 10;
    return runs.size() > 1 && runs[runs.size() / 2].bytes.size() < kShort;
  }

  /// Copies runs into the file's pages. False, and nothing is written, where the file system cannot
  /// promise room for them, or where other machines may write to the same pages.
  bool write_mapped(std::span<const FileRun> runs) {
    static const std::uint64_t page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    if (!is_local_) is_local_ = has_local_pages(file_.number());
    if (!*is_local_) return false;
    const std::uint64_t begin = runs.front().offset / page * page;
    const std::uint64_t bytes = runs.back().offset + runs.back().bytes.size() - begin;
    const auto length = static_cast<off_t>(bytes);
    const auto offset = static_cast<off_t>(begin);
    if (retried([&] { return ::fallocate(file_.number(), 0, offset, length); }) != 0) return false;
    void* mapped =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.number(), offset);
    if (mapped == MAP_FAILED) return false;  // NOLINT
    for (const FileRun& run : runs) {
      std::memcpy(static_cast<std::byte*>(mapped) + (run.offset - begin), run.bytes.data(),
                  run.bytes.size());
    }
    ::munmap(mapped, bytes);
    return true;
  }

  /// Begins to bring it to the disk, so that `sync` has less to wait for. A hint: may fail.
  void begin_sync(std::uint64_t begin, std::uint64_t end) const {
    ::sync_file_range(file_.number(), static_cast<off_t>(begin), static_cast<off_t>(end - begin),
                      SYNC_FILE_RANGE_WRITE);
  }

  std::string path_;
  Descriptor file_;
  std::uint64_t written_ = 0;
  std::optional<bool> is_local_;
};

class LocalInput : public InputFile {
 public:
  explicit LocalInput(const std::string& path) : path_(path), file_(path, O_RDONLY) {
    struct stat status {};
    if (::fstat(file_.number(), &status) != 0) fail_with(errno, path_, "cannot be looked at");
    if (!S_ISREG(status.st_mode)) fail<FileError>("checkpoint", path_, ": not a file");
    bytes_ = static_cast<std::uint64_t>(status.st_size);
  }

  std::uint64_t bytes() const override { return bytes_; }

  void read(std::uint64_t offset, std::span<std::byte> into) const override {
    while (!into.empty()) {
      const auto done = retried([&] {
        return ::pread(file_.number(), into.data(), into.size(), static_cast<off_t>(offset));
      });
      if (done < 0) fail_with(errno, path_, concat("cannot be read at byte ", offset));
      if (done == 0) fail<FileError>("checkpoint", path_, ": ends at byte ", offset);
      offset += static_cast<std::uint64_t>(done);
      into = into.subspan(static_cast<std::size_t>(done));
    }
  }

 private:
  std::string path_;
  Descriptor file_;
  std::uint64_t bytes_ = 0;
};

class LocalFiles : public Files {
 public:
  std::unique_ptr<OutputFile> create(const std::string& path) override {
    return std::make_unique<LocalOutput>(path, O_CREAT | O_EXCL);
  }
  std::unique_ptr<OutputFile> open_to_write(const std::string& path) override {
    return std::make_unique<LocalOutput>(path, 0);
  }
  std::unique_ptr<InputFile> open(const std::string& path) override {
    return std::make_unique<LocalInput>(path);
  }
  bool exists(const std::string& path) override {
    if (::access(path.c_str(), F_OK) == 0) return true;
    if (errno != ENOENT && errno != ENOTDIR) fail_with(errno, path, "cannot be looked at");
    return false;
  }

  std::vector<std::string> list(const std::string& folder) override {
    std::vector<std::string> names;
    std::error_code error;
    for (auto each = std::filesystem::directory_iterator(folder, error);
         !error && each != std::filesystem::directory_iterator(); each.increment(error)) {
      names.push_back(each->path().filename().string());
    }
    if (error) fail_with(error.value(), folder, "cannot be listed");
    std::sort(names.begin(), names.end());
    return names;
  }

  void make_folder(const std::string& path) override {
    constexpr mode_t kMode = 0777;
    if (::mkdir(path.c_str(), kMode) != 0) fail_with(errno, path, "cannot be made");
  }
  void rename(const std::string& from, const std::string& to) override {
    move(from, to, RENAME_NOREPLACE);
  }
  void exchange(const std::string& a, const std::string& b) override {
    move(a, b, RENAME_EXCHANGE);
  }

  void remove(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) fail_with(error.value(), path, "cannot be removed");
  }
  void sync_folder(const std::string& path) override {
    const Descriptor folder(path, O_RDONLY | O_DIRECTORY);
    if (retried([&] { return ::fsync(folder.number()); }) != 0) {
      fail_with(errno, path, "cannot be brought to the disk");
    }
  }
  std::uint64_t free_bytes(const std::string& folder) override {
    struct statvfs status {};
    if (::statvfs(folder.c_str(), &status) != 0) fail_with(errno, folder, "cannot be looked at");
    return std::uint64_t{status.f_bavail} * status.f_frsize;
  }

 private:
  static void move(const std::string& from, const std::string& to, unsigned flags) {
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) return;
    fail_with(errno, from, concat("cannot be renamed to ", to));
  }
};

}  // namespace

Files& local_files() {
  static LocalFiles files;
  return files;
}

}  // namespace intarsia::checkpoint
