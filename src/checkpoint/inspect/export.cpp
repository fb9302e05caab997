#include "checkpoint/inspect/export.h"

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
    const std::vector<FileHeader> planned = plan();
    NewFolder folder(files_, to);
    std::size_t first = 0;
    for (std::size_t i = 0; i < planned.size(); ++i) {
      const std::size_t count = planned[i].tensors.size();
      write(join_path(folder.path(), hf_file_name(i, planned.size())), planned[i],
            std::span(tensors_).subspan(first, count));
      first += count;
    }
    if (planned.size() > 1) {
      write_text(files_, join_path(folder.path(), kHfIndexName), hf_index_text(planned));
    }
    folder.commit();
  }

 private:
  /// Which tensor goes to which file, in the order of the manifest.
  std::vector<FileHeader> plan() {
    std::vector<FileTensor> out;
    for (std::size_t t = 0; t < manifest_.tensors.size(); ++t) {
      const auto& [name, type] = manifest_.tensors[t];
      if (!name.starts_with(options_.prefix)) continue;
      out.push_back(file_tensor(name.substr(options_.prefix.size()), dtype_of(type), type.shape));
      tensors_.push_back(t);
      all_ += bytes_of(dtype_of(type), type.shape);
    }
    if (out.empty()) {
      fail<ValueError>(kWhere, from_, ": no tensor's name begins with '", options_.prefix, "'");
    }
    return hf_files(std::move(out), options_.file_bytes);
  }

  DType dtype_of(const TensorType& type) const {
    return options_.dtype && can_convert(type.dtype) ? *options_.dtype : type.dtype;
  }

  void write(const std::string& path, const FileHeader& header,
             std::span<const std::size_t> tensors) {
    const std::string text = header_text(header);
    const auto file = files_.create(path);
    file->append(std::as_bytes(std::span(text)));
    for_each_block(files_, from_, manifest_, tensors, options_.verify,
                   [&](std::size_t tensor, std::span<const std::byte> values) {
                     const DType from = manifest_.tensors[tensor].type.dtype;
                     const DType to = dtype_of(manifest_.tensors[tensor].type);
                     std::vector<std::byte> converted;
                     if (from != to) {
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
  std::vector<std::size_t> tensors_;  // that are exported
  std::uint64_t all_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace

void export_hf(Files& files, const std::string& from, const Manifest& manifest,
               const std::string& to, const ExportOptions& options, const Progress& progress) {
  Export(files, from, manifest, options, progress).run(to);
}

}  // namespace intarsia::checkpoint
