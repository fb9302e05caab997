// The parsers of what checkpoints are made of, fed with anything: none may crash, read beyond its
// text, or take what is not exactly as docs/formats.md says. The first byte chooses the parser.
//
// What is accepted must hold together: tensors of a header are inside the file and do not overlap,
// a manifest gives its own text back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/files/files.h"
#include "checkpoint/format/hashes.h"
#include "checkpoint/format/hugging_face.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/pickle.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/format/zip.h"
#include "checkpoint/plan/write_plan.h"
#include "intarsia/error.h"

namespace {

using namespace intarsia::checkpoint;

void require(bool holds) {
  if (!holds) std::abort();
}

/// A file of which only the header is there; its length is in the text's first bytes.
void header(std::string_view text) {
  std::uint64_t file_bytes = 0;
  constexpr std::size_t kLength = 8;
  if (text.size() < kLength) return;
  for (std::size_t i = 0; i < kLength; ++i) {
    file_bytes = file_bytes << 8 | static_cast<std::uint8_t>(text[i]);
  }
  const FileHeader parsed = parse_header("h", text.substr(kLength), file_bytes);
  std::uint64_t at = parsed.data_begin;
  for (const FileTensor& tensor : parsed.tensors) {
    require(tensor.begin == at && tensor.end >= tensor.begin && tensor.end <= file_bytes);
    require(tensor.end - tensor.begin == bytes_of(tensor.dtype, tensor.shape));
    at = tensor.end;
  }
  require(at == file_bytes);
}

/// The text with its right hash: otherwise nothing would come through.
void manifest(std::string_view text) {
  std::string all(text);
  all += "\"hash\":\"" + hash_to_text(hash_of(text)) + "\"}\n";
  const Manifest parsed = Manifest::parse("m", all);
  require(Manifest::parse("m", parsed.to_text()) == parsed);
  constexpr std::int64_t kMostRanks = 64;
  if (parsed.world <= kMostRanks) {
    const WritePlan plan(parsed.tensors);
    for (std::int64_t rank = 0; rank < parsed.world; ++rank) plan.of_rank(rank);
  }
}

void hashes(std::string_view text) {
  const FileHashes parsed = FileHashes::parse("s", text);
  require(parsed.chunks.size() == chunks_in(parsed.file_bytes));
}

void index(std::string_view text) {
  for (const auto& [name, file] : parse_hf_index("i", text)) {
    require(file.find('/') == file.npos);
  }
}

void pickle(std::string_view text) {
  parse_pickle("p", std::as_bytes(std::span(text)),
               [](std::string_view global) { return global.starts_with("torch "); });
}

/// A file that is all here.
class Text : public InputFile {
 public:
  explicit Text(std::string_view text) : text_(text) {}
  std::uint64_t bytes() const override { return text_.size(); }
  void read(std::uint64_t offset, std::span<std::byte> into) const override {
    require(offset <= text_.size() && into.size() <= text_.size() - offset);
    std::memcpy(into.data(), text_.data() + offset, into.size());
  }

 private:
  std::string_view text_;
};

void zip(std::string_view text) {
  for (const ZipMember& member : read_zip("z", Text(text), 0, text.size())) {
    require(member.begin <= text.size() && member.bytes <= text.size() - member.begin);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr void (*kParsers[])(std::string_view) = {header, manifest, hashes, index, pickle, zip};
  try {
    kParsers[data[0] % std::size(kParsers)](text);
  } catch (const intarsia::FileError&) {  // NOLINT(bugprone-empty-catch): as it should be
  }
  return 0;
}
