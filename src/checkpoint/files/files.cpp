#include "checkpoint/files/files.h"

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {

void OutputFile::append_all(std::span<const std::span<const std::byte>> parts) {
  std::vector<std::byte> joined;
  for (const auto& part : parts) joined.insert(joined.end(), part.begin(), part.end());
  append(joined);
}

void OutputFile::write_runs(std::span<const FileRun> runs) {
  for (const FileRun& run : runs) write_at(run.offset, run.bytes);
}

void Files::publish(const std::string& path, std::string_view, bool) {
  fail<UnsupportedError>("checkpoint", path, ": files are published where nothing can be renamed");
}

std::string join_path(std::string_view folder, std::string_view name) {
  return folder.ends_with('/') ? concat(folder, name) : concat(folder, '/', name);
}

std::string read_text(Files& files, const std::string& path, std::uint64_t most) {
  const auto file = files.open(path);
  if (file->bytes() > most) {
    fail<FileError>("checkpoint", path, ": ", file->bytes(), " bytes, more than ", most);
  }
  std::string text(file->bytes(), '\0');
  file->read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text(Files& files, const std::string& path, std::string_view text) {
  const auto file = files.create(path);
  file->append(std::as_bytes(std::span(text)));
  file->sync();
}

}  // namespace intarsia::checkpoint
