// The hf form: files as Hugging Face has them, which hold all of each tensor, and into which ranks
// write together. What one rank writes of them is to all others one file: its shares, one after
// the other. So hashes, reading and checking are those of the native form.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files/files.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/plan/write_plan.h"

namespace intarsia::checkpoint {

class SharedFiles {
 public:
  /// Pure: all ranks put the same tensors in the same places. REQUIRES: `tensors` stays.
  SharedFiles(std::span<const SavedTensor> tensors, std::uint64_t file_bytes);

  /// Where a tensor is.
  struct Place {
    std::size_t file = 0;
    std::uint64_t begin = 0;
  };
  const Place& place(std::size_t tensor) const { return places_[tensor]; }
  std::span<const SavedTensor> tensors() const { return tensors_; }
  std::size_t count() const { return headers_.size(); }
  std::string name(std::size_t file) const;
  std::string header(std::size_t file) const;
  /// The length of a file.
  std::uint64_t bytes(std::size_t file) const { return headers_[file].file_bytes; }
  /// What `model.safetensors.index.json` says; empty for one file, which needs none.
  std::string index() const;

  /// What a rank writes, as a file: it begins with its first share. The files must be there.
  std::unique_ptr<OutputFile> output(Files& files, const std::string& folder,
                                     std::span<const Share> shares) const;
  /// The same to be read. FileError where a file's length or header is not what was written.
  std::unique_ptr<InputFile> input(Files& files, const std::string& folder,
                                   std::span<const Share> shares) const;

  /// FileError unless a file that is open here has the length and the header it should.
  void check(const InputFile& opened, const std::string& path, std::size_t file) const;

 private:
  std::span<const SavedTensor> tensors_;
  std::vector<FileHeader> headers_;
  std::vector<Place> places_;  // one for each tensor
};

}  // namespace intarsia::checkpoint
