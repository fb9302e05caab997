#include "checkpoint/transfer/hugging_face_folder.h"

#include <algorithm>

#include "base/text.h"
#include "checkpoint/format/hugging_face.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/transfer/rank_file.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::string_view kWhere = "checkpoint";
constexpr std::uint64_t kMostIndexBytes = std::uint64_t{1} << 30;

/// The names of the files with tensors, in order.
std::vector<std::string> data_files(Files& files, const std::string& folder,
                                    const std::map<std::string, std::string>& index) {
  std::vector<std::string> out;
  if (!index.empty()) {
    for (const auto& [name, file] : index) out.push_back(file);
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }
  for (const std::string& name : files.list(folder)) {
    if (name.ends_with(".safetensors")) out.push_back(name);
  }
  const bool has_usual = std::find(out.begin(), out.end(), kHfSingleName) != out.end();
  if (has_usual) return {std::string(kHfSingleName)};
  if (out.size() == 1) return out;
  fail<FileError>(kWhere, folder, ": no ", kHfIndexName, ", and ",
                  out.empty() ? "no safetensors files" : concat("several of ", join(out, ", ")));
}

/// Refuses an index that names other tensors than its files have.
void check_index(const std::string& folder, const std::map<std::string, std::string>& index,
                 const Manifest& manifest) {
  std::size_t found = 0;
  for (const SavedTensor& tensor : manifest.tensors) {
    const auto place = index.find(tensor.name);
    const auto& file =
        manifest.file_names[static_cast<std::size_t>(tensor.type.layout.mesh().highest())];
    if (place == index.end() || place->second != file) {
      fail<FileError>(kWhere, join_path(folder, file), ": holds '", tensor.name, "', which ",
                      kHfIndexName, place == index.end() ? " does not name" : " names elsewhere");
    }
    ++found;
  }
  if (found == index.size()) return;
  for (const auto& [name, file] : index) {
    const bool is_there = std::any_of(manifest.tensors.begin(), manifest.tensors.end(),
                                      [&](const SavedTensor& each) { return each.name == name; });
    if (!is_there) {
      fail<FileError>(kWhere, join_path(folder, file), ": has no '", name, "', which ",
                      kHfIndexName, " says");
    }
  }
}

}  // namespace

Manifest read_hf_folder(Files& files, const std::string& folder) {
  const std::string path = join_path(folder, kHfIndexName);
  std::map<std::string, std::string> index;
  if (files.exists(path)) index = parse_hf_index(path, read_text(files, path, kMostIndexBytes));
  Manifest out;
  out.file_names = data_files(files, folder, index);
  out.world = static_cast<std::int64_t>(out.file_names.size());
  for (std::int64_t rank = 0; rank < out.world; ++rank) {
    const std::string name = out.file_names[static_cast<std::size_t>(rank)];
    const std::uint64_t bytes = files.open(join_path(folder, name))->bytes();
    out.files.push_back({rank, bytes, 0});
    const RankFile file(files, join_path(folder, name), out.files.back(), std::nullopt);
    const Layout layout = Layout::replicated(Mesh({{"file", 1}}, rank));
    for (const FileTensor& tensor : file.header().tensors) {
      out.tensors.push_back({tensor.name, {tensor.dtype, tensor.shape, layout}});
    }
  }
  if (!index.empty()) check_index(folder, index, out);
  return out;
}

}  // namespace intarsia::checkpoint
