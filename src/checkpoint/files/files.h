// Files: all that checkpoints ask of a file system. Tests have one that breaks where they say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace intarsia::checkpoint {

/// Bytes, and where in a file they belong.
struct FileRun {
  std::uint64_t offset = 0;
  std::span<const std::byte> bytes;
};

/// A file that is written, as a rule from its beginning to its end.
class OutputFile {
 public:
  virtual ~OutputFile() = default;
  virtual void append(std::span<const std::byte> bytes) = 0;
  /// Appends parts, one after the other, as one write.
  virtual void append_all(std::span<const std::span<const std::byte>> parts);
  /// Writes anywhere: for files that several ranks write together.
  virtual void write_at(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  /// Writes several runs, by ascending offsets.
  virtual void write_runs(std::span<const FileRun> runs);
  /// How long it will be: a hint, before the first byte.
  virtual void expect(std::uint64_t /*bytes*/) {}
  /// Returns when everything written would survive a crash of the machine.
  virtual void sync() = 0;
};

class InputFile {
 public:
  virtual ~InputFile() = default;
  virtual std::uint64_t bytes() const = 0;
  /// Fills `into` with the bytes from `offset` on. FileError when the file ends before.
  virtual void read(std::uint64_t offset, std::span<std::byte> into) const = 0;
};

/// A file system. Every failure is a FileError that names the path and the system's reason.
/// THREADS: may be used by several at once.
class Files {
 public:
  virtual ~Files() = default;
  /// A file that is not there yet.
  virtual std::unique_ptr<OutputFile> create(const std::string& path) = 0;
  /// One that is there, to be written at offsets.
  virtual std::unique_ptr<OutputFile> open_to_write(const std::string& path) = 0;
  virtual std::unique_ptr<InputFile> open(const std::string& path) = 0;
  virtual bool exists(const std::string& path) = 0;
  /// The names in a folder, in alphabetical order.
  virtual std::vector<std::string> list(const std::string& folder) = 0;
  /// A folder that is not there yet.
  virtual void make_folder(const std::string& path) = 0;
  /// `to` must not be there.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  /// Each takes the name of the other, in one step.
  virtual void exchange(const std::string& a, const std::string& b) = 0;
  /// With all that is in it.
  virtual void remove(const std::string& path) = 0;
  /// Returns when the names in a folder would survive a crash of the machine.
  virtual void sync_folder(const std::string& path) = 0;
  /// How many bytes may still be written there.
  virtual std::uint64_t free_bytes(const std::string& folder) = 0;
  /// Gives up what was begun in a folder and is not yet to be seen there.
  virtual void sweep(const std::string& /*folder*/) {}
  /// Whether folders there can be renamed. Not so in object stores: what is written there stays
  /// where it is, and a file that is published tells of it.
  virtual bool renames(const std::string& /*path*/) { return true; }
  /// Writes a small file in one step, so that readers see all of it or none. Not `replace`:
  /// FileError where there is one. REQUIRES: not renames.
  virtual void publish(const std::string& path, std::string_view text, bool replace);
};

/// The file systems of this machine.
Files& local_files();

/// `folder/name`.
std::string join_path(std::string_view folder, std::string_view name);

/// A small file as text. FileError above `most` bytes.
std::string read_text(Files& files, const std::string& path, std::uint64_t most);
/// Writes a small file, and syncs it.
void write_text(Files& files, const std::string& path, std::string_view text);

}  // namespace intarsia::checkpoint
