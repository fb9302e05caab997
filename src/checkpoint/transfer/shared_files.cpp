#include "checkpoint/transfer/shared_files.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/text.h"
#include "checkpoint/format/hugging_face.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/plan/copy_runs.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

/// Bytes of a rank's shares that follow each other in a file too.
struct Run {
  std::size_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

/// Walks over the shares of a rank, as they are in the files.
class ShareRuns {
 public:
  ShareRuns(const SharedFiles& files, std::span<const Share> shares)
      : files_(files), shares_(shares.begin(), shares.end()) {
    for (const Share& share : shares_) {
      begins_.push_back(bytes_);
      const TensorType& type = files_.tensors()[share.tensor].type;
      bytes_ += bytes_of(type.dtype, share.part.shape);
    }
  }

  std::uint64_t bytes() const { return bytes_; }

  /// Goes to a byte of the shares. Cheap when it is the next one, or a later one of the share.
  void seek(std::uint64_t position) {
    if (!runs_ || position < at_ || position >= end_of(share_)) {
      const auto after = std::upper_bound(begins_.begin(), begins_.end(), position);
      enter(static_cast<std::size_t>(after - begins_.begin()) - 1);
    }
    while (at_ < position) advance(std::min(run().bytes, position - at_));
  }

  /// REQUIRES: not at the end.
  Run run() const {
    const SharedFiles::Place& place = files_.place(shares_[share_].tensor);
    const auto run = runs_->run();
    return {place.file, place.begin + run->to, run->bytes};
  }

  void advance(std::uint64_t bytes) {
    at_ += bytes;
    runs_->advance(bytes);
    if (at_ == end_of(share_) && at_ < bytes_) enter(share_ + 1);
  }

 private:
  std::uint64_t end_of(std::size_t share) const {
    return share + 1 < begins_.size() ? begins_[share + 1] : bytes_;
  }

  void enter(std::size_t share) {
    share_ = share;
    at_ = begins_[share];
    const TensorType& type = files_.tensors()[shares_[share].tensor].type;
    const Part all = part_of(boxes(Layout::replicated(Mesh()), type.shape, {}));
    runs_.emplace(shares_[share].part, all, element_bytes(type.dtype));
  }

  const SharedFiles& files_;
  std::vector<Share> shares_;
  std::vector<std::uint64_t> begins_;  // of the shares
  std::uint64_t bytes_ = 0;
  std::size_t share_ = 0;
  std::uint64_t at_ = 0;
  std::optional<CopyRuns> runs_;
};

class SharedOutput : public OutputFile {
 public:
  SharedOutput(Files& files, const SharedFiles& shared, std::string folder,
               std::span<const Share> shares)
      : files_(files), shared_(shared), folder_(std::move(folder)), runs_(shared, shares) {}

  void append(std::span<const std::byte> bytes) override { append_all(std::span(&bytes, 1)); }

  void append_all(std::span<const std::span<const std::byte>> parts) override {
    std::size_t number = 0;
    std::vector<FileRun> together;  // of one file
    for (std::span<const std::byte> bytes : parts) {
      while (!bytes.empty()) {
        runs_.seek(written_);
        const Run run = runs_.run();
        const auto now = bytes.first(std::min<std::uint64_t>(run.bytes, bytes.size()));
        if (run.file != number) write(number, together);
        number = run.file;
        together.push_back({run.offset, now});
        written_ += now.size();
        bytes = bytes.subspan(now.size());
      }
    }
    write(number, together);
  }
  void write_at(std::uint64_t offset, std::span<const std::byte>) override {
    fail<UnsupportedError>("checkpoint", folder_, ": a write at byte ", offset,
                           ", where shares are written one after the other");
  }
  void sync() override {
    for (auto& [number, opened] : opened_) opened->sync();
  }

 private:
  void write(std::size_t number, std::vector<FileRun>& runs) {
    if (!runs.empty()) file(number).write_runs(runs);
    runs.clear();
  }

  OutputFile& file(std::size_t number) {
    auto& place = opened_[number];
    if (!place) place = files_.open_to_write(join_path(folder_, shared_.name(number)));
    return *place;
  }

  Files& files_;
  const SharedFiles& shared_;
  std::string folder_;
  ShareRuns runs_;
  std::uint64_t written_ = 0;
  std::map<std::size_t, std::unique_ptr<OutputFile>> opened_;
};

class SharedInput : public InputFile {
 public:
  SharedInput(Files& files, const SharedFiles& shared, std::string folder,
              std::span<const Share> shares)
      : files_(files), shared_(shared), folder_(std::move(folder)), runs_(shared, shares) {}

  std::uint64_t bytes() const override { return runs_.bytes(); }

  void read(std::uint64_t offset, std::span<std::byte> into) const override {
    while (!into.empty()) {
      runs_.seek(offset);
      const Run run = runs_.run();
      const auto now = into.first(std::min<std::uint64_t>(run.bytes, into.size()));
      file(run.file).read(run.offset, now);
      offset += now.size();
      into = into.subspan(now.size());
    }
  }

 private:
  const InputFile& file(std::size_t number) const {
    auto& place = opened_[number];
    if (!place) {
      const std::string path = join_path(folder_, shared_.name(number));
      auto opened = files_.open(path);
      shared_.check(*opened, path, number);
      place = std::move(opened);
    }
    return *place;
  }

  Files& files_;
  const SharedFiles& shared_;
  std::string folder_;
  mutable ShareRuns runs_;  // where the last read ended
  mutable std::map<std::size_t, std::unique_ptr<InputFile>> opened_;
};

}  // namespace

SharedFiles::SharedFiles(std::span<const SavedTensor> tensors, std::uint64_t file_bytes)
    : tensors_(tensors) {
  std::vector<FileTensor> stored;
  for (const auto& [name, type] : tensors) {
    stored.push_back(file_tensor(name, type.dtype, type.shape));
  }
  headers_ = hf_files(std::move(stored), file_bytes);
  for (std::size_t file = 0; file < headers_.size(); ++file) {
    for (const FileTensor& tensor : headers_[file].tensors) places_.push_back({file, tensor.begin});
  }
}

std::string SharedFiles::name(std::size_t file) const {
  return hf_file_name(file, headers_.size());
}

std::string SharedFiles::header(std::size_t file) const { return header_text(headers_[file]); }

std::string SharedFiles::index() const {
  return headers_.size() > 1 ? hf_index_text(headers_) : std::string();
}

std::unique_ptr<OutputFile> SharedFiles::output(Files& files, const std::string& folder,
                                                std::span<const Share> shares) const {
  return std::make_unique<SharedOutput>(files, *this, folder, shares);
}

std::unique_ptr<InputFile> SharedFiles::input(Files& files, const std::string& folder,
                                              std::span<const Share> shares) const {
  return std::make_unique<SharedInput>(files, *this, folder, shares);
}

void SharedFiles::check(const InputFile& opened, const std::string& path, std::size_t file) const {
  if (opened.bytes() != bytes(file)) {
    fail<FileError>("checkpoint", path, ": ", opened.bytes(), " bytes, and ", bytes(file),
                    " were written");
  }
  const std::string wanted = header(file);
  std::string found(wanted.size(), '\0');
  opened.read(0, std::as_writable_bytes(std::span(found)));
  if (found != wanted) {
    fail<FileError>("checkpoint", path, ": damaged: not the header that the manifest asks for");
  }
}

}  // namespace intarsia::checkpoint
