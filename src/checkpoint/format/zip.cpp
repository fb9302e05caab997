#include "checkpoint/format/zip.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

// Records of the format: what they begin with, and where their fields are.
constexpr std::uint64_t kEnd = 0x06054b50;
constexpr std::uint64_t kEndBytes = 22;
constexpr std::uint64_t kEntry = 0x02014b50;
constexpr std::uint64_t kEntryBytes = 46;
constexpr std::uint64_t kLocal = 0x04034b50;
constexpr std::uint64_t kLocalBytes = 30;
constexpr std::uint64_t kMostComment = 0xffff;
constexpr std::uint64_t kLong = 0xffffffff;  // stands for a number elsewhere

class Archive {
 public:
  Archive(std::string_view path, const InputFile& file, std::uint64_t begin, std::uint64_t bytes)
      : path_(path), file_(file), begin_(begin), bytes_(bytes) {
    if (begin > file.bytes() || bytes > file.bytes() - begin) refuse("reaches beyond the file");
    if (bytes >= kLong) refuse("has 4 GiB or more, which is not read");
  }

  std::vector<ZipMember> members() const {
    const std::uint64_t length = std::min(bytes_, kEndBytes + kMostComment);
    const std::string last = text(bytes_ - length, length);
    const std::string end = last.substr(find_end(last));
    const std::uint64_t bytes = number(end, 12, 4);
    const std::uint64_t at = number(end, 16, 4);
    const std::string entries = text(at, bytes);
    std::vector<ZipMember> out;
    for (std::uint64_t place = 0; place < entries.size();) {
      if (entries.size() - place < kEntryBytes || number(entries, place, 4) != kEntry) {
        refuse("has a list that is none");
      }
      const std::uint64_t name_bytes = number(entries, place + 28, 2);
      const std::uint64_t others = number(entries, place + 30, 2) + number(entries, place + 32, 2);
      if (entries.size() - place - kEntryBytes < name_bytes + others) refuse("ends too early");
      const std::string name = entries.substr(place + kEntryBytes, name_bytes);
      const std::uint64_t stored = number(entries, place + 20, 4);
      if (number(entries, place + 10, 2) != 0 || stored != number(entries, place + 24, 4)) {
        refuse(concat("has '", name, "' compressed, which is not read"));
      }
      out.push_back({name, data_begin(number(entries, place + 42, 4), stored), stored});
      place += kEntryBytes + name_bytes + others;
    }
    return out;
  }

 private:
  [[noreturn]] void refuse(std::string_view reason) const {
    fail<FileError>("checkpoint", path_, ": the archive of ", bytes_, " bytes at byte ", begin_,
                    " ", reason);
  }
  std::string text(std::uint64_t at, std::uint64_t bytes) const {
    if (at > bytes_ || bytes > bytes_ - at) refuse("points beyond itself");
    std::string out(bytes, '\0');
    file_.read(begin_ + at, std::as_writable_bytes(std::span(out)));
    return out;
  }
  static std::uint64_t number(const std::string& text, std::uint64_t at, std::size_t bytes) {
    std::uint64_t out = 0;
    for (std::size_t i = bytes; i-- > 0;) out = out << 8 | static_cast<std::uint8_t>(text[at + i]);
    return out;
  }
  std::uint64_t find_end(const std::string& last) const {
    if (last.size() < kEndBytes) refuse("is too short");
    for (std::uint64_t at = last.size() - kEndBytes + 1; at-- > 0;) {
      if (number(last, at, 4) == kEnd) return at;
    }
    refuse("has no end");
  }
  /// Where the bytes of a member are in the file.
  std::uint64_t data_begin(std::uint64_t at, std::uint64_t bytes) const {
    const std::string local = text(at, kLocalBytes);
    if (number(local, 0, 4) != kLocal) refuse("has a member that is none");
    const std::uint64_t data = at + kLocalBytes + number(local, 26, 2) + number(local, 28, 2);
    if (data > bytes_ || bytes > bytes_ - data) refuse("has a member that reaches beyond it");
    return begin_ + data;
  }

  std::string_view path_;
  const InputFile& file_;
  std::uint64_t begin_;
  std::uint64_t bytes_;
};

}  // namespace

std::vector<ZipMember> read_zip(std::string_view path, const InputFile& file, std::uint64_t begin,
                                std::uint64_t bytes) {
  return Archive(path, file, begin, bytes).members();
}

}  // namespace intarsia::checkpoint
