#include "checkpoint/inspect/export.h"

#include <map>
#include <memory>
#include <vector>

#include "base/text.h"
#include "checkpoint/format/hugging_face.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/inspect/blocks.h"
#include "checkpoint/inspect/convert.h"
#include "checkpoint/inspect/new_folder.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::string_view kWhere = "checkpoint";

/// A tensor of the manifest, as it will be in a file.
struct Exported {
  std::size_t tensor = 0;
  FileTensor as;
};
using File = std::vector<Exported>;

class Export {
 public:
  Export(Files& files, const std::string& from, const Manifest& manifest,
         const ExportOptions& options, const Progress& progress)
      : files_(files), from_(from), manifest_(manifest), options_(options), progress_(progress) {}

  void run(const std::string& to) {
    if (options_.dtype && !can_convert(*options_.dtype)) {
      fail<ValueError>(kWhere, "cannot convert to ", to_text(*options_.dtype),
                       "; f64, f32, bf16 and f16 are known");
    }
    const std::vector<File> planned = plan();
    NewFolder folder(files_, to);
    std::map<std::string, std::string> index;
    for (std::size_t i = 0; i < planned.size(); ++i) {
      const std::string name = hf_file_name(i, planned.size());
      for (const Exported& each : planned[i]) index[each.as.name] = name;
      write(join_path(folder.path(), name), planned[i]);
    }
    if (planned.size() > 1) {
      write_text(files_, join_path(folder.path(), kHfIndexName), hf_index_text(index, all_));
    }
    folder.commit();
  }

 private:
  /// Which tensor goes to which file, in the order of the manifest.
  std::vector<File> plan() {
    std::vector<File> out;
    std::uint64_t in_file = 0;
    for (std::size_t t = 0; t < manifest_.tensors.size(); ++t) {
      const auto& [name, type] = manifest_.tensors[t];
      if (!name.starts_with(options_.prefix)) continue;
      Exported each{t, {.name = name.substr(options_.prefix.size()), .shape = type.shape}};
      const bool converts = options_.dtype && can_convert(type.dtype);
      each.as.dtype = converts ? *options_.dtype : type.dtype;
      const std::uint64_t bytes = bytes_of(each.as.dtype, type.shape);
      if (const StoredDType stored = stored_as(type.dtype); stored.pairs) {
        each.as.dtype = *dtype_of_stored(stored.name);
        each.as.shape.push_back(2);
      }
      if (out.empty() || (in_file > 0 && in_file + bytes > options_.file_bytes)) {
        out.emplace_back();
        in_file = 0;
      }
      in_file += bytes;
      all_ += bytes;
      out.back().push_back(std::move(each));
    }
    if (out.empty()) {
      fail<ValueError>(kWhere, from_, ": no tensor's name begins with '", options_.prefix, "'");
    }
    return out;
  }

  void write(const std::string& path, const File& planned) {
    std::vector<FileTensor> placed;
    std::vector<std::size_t> tensors;
    std::map<std::size_t, DType> dtypes;
    for (const Exported& each : planned) {
      placed.push_back(each.as);
      tensors.push_back(each.tensor);
      dtypes[each.tensor] = each.as.dtype;
    }
    const std::string header = header_text(place_tensors(placed, {{"format", "pt"}}));
    const auto file = files_.create(path);
    file->append(std::as_bytes(std::span(header)));
    for_each_block(files_, from_, manifest_, tensors, options_.verify,
                   [&](std::size_t tensor, std::span<const std::byte> values) {
                     const DType from = manifest_.tensors[tensor].type.dtype;
                     const DType to = dtypes[tensor];
                     std::vector<std::byte> converted;
                     if (from != to && can_convert(from)) {
                       converted = convert(values, from, to);
                       values = converted;
                     }
                     file->append(values);
                     done_ += values.size();
                     if (progress_) progress_(done_, all_);
                   });
    file->sync();
  }

  Files& files_;
  const std::string& from_;
  const Manifest& manifest_;
  const ExportOptions& options_;
  const Progress& progress_;
  std::uint64_t all_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace

void export_hf(Files& files, const std::string& from, const Manifest& manifest,
               const std::string& to, const ExportOptions& options, const Progress& progress) {
  Export(files, from, manifest, options, progress).run(to);
}

}  // namespace intarsia::checkpoint
