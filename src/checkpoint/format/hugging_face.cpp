#include "checkpoint/format/hugging_face.h"

#include "base/text.h"
#include "checkpoint/format/json.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/stored_dtype.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {

std::map<std::string, std::string> parse_hf_index(std::string_view file, std::string_view text) {
  constexpr std::string_view kEnding = ".safetensors";
  const Json json = parse_json(file, text);
  const Field fields{json, file, {}};
  const Field map = fields.at("weight_map");
  std::map<std::string, std::string> out;
  for (const auto& [name, ignored] : map.object()) {
    const Field place = map.at(name);
    const std::string& in = place.text();
    if (in.find('/') != in.npos || in.size() <= kEnding.size() || !in.ends_with(kEnding)) {
      place.refuse(concat("is '", in, "', which is no name of a safetensors file"));
    }
    out[name] = in;
  }
  return out;
}

std::vector<FileHeader> hf_files(std::vector<FileTensor> tensors, std::uint64_t file_bytes) {
  std::vector<std::vector<FileTensor>> files(1);
  std::uint64_t in_file = 0;
  for (FileTensor& tensor : tensors) {
    const std::uint64_t bytes = bytes_of(tensor.dtype, tensor.shape);
    if (in_file > 0 && in_file + bytes > file_bytes) {
      files.emplace_back();
      in_file = 0;
    }
    in_file += bytes;
    files.back().push_back(std::move(tensor));
  }
  std::vector<FileHeader> out;
  for (auto& each : files) out.push_back(place_tensors(std::move(each), {{"format", "pt"}}));
  return out;
}

std::string hf_index_text(const std::vector<FileHeader>& files) {
  std::map<std::string, std::string> file_of_tensor;
  std::uint64_t total_bytes = 0;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = hf_file_name(i, files.size());
    for (const FileTensor& tensor : files[i].tensors) file_of_tensor[tensor.name] = name;
    total_bytes += files[i].file_bytes - files[i].data_begin;
  }
  const Json index{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", file_of_tensor}};
  constexpr int kIndent = 2;
  return index.dump(kIndent) + '\n';
}

std::string hf_file_name(std::size_t number, std::size_t count) {
  if (count == 1) return std::string(kHfSingleName);
  constexpr std::size_t kDigits = 5;
  return concat("model-", padded(static_cast<std::int64_t>(number) + 1, kDigits), "-of-",
                padded(static_cast<std::int64_t>(count), kDigits), ".safetensors");
}

}  // namespace intarsia::checkpoint
