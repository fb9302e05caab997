#include "checkpoint/inspect/export.h"

#include <array>
#include <memory>
#include <vector>

#include "base/text.h"
#include "checkpoint/format/hugging_face.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/inspect/blocks.h"
#include "checkpoint/inspect/convert.h"
#include "checkpoint/inspect/new_folder.h"
#include "checkpoint/transfer/read_mapped.h"
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
  /// Which tensor goes to which file.
  std::vector<FileHeader> plan() {
    std::vector<SavedTensor> ours;
    std::vector<std::size_t> places;
    for (std::size_t t = 0; t < manifest_.tensors.size(); ++t) {
      const auto& [name, type] = manifest_.tensors[t];
      if (!name.starts_with(options_.prefix)) continue;
      ours.push_back({name.substr(options_.prefix.size()), type});
      places.push_back(t);
    }
    if (ours.empty()) {
      fail<ValueError>(kWhere, from_, ": no tensor's name begins with '", options_.prefix, "'");
    }
    tensors_ = options_.names.reversed().apply(ours);
    std::vector<FileTensor> out;
    for (MappedTensor& tensor : tensors_) {
      for (MappedBlock& block : tensor.blocks) block.tensor = places[block.tensor];
      out.push_back(file_tensor(tensor.name, dtype_of(tensor.dtype), tensor.shape));
      all_ += bytes_of(dtype_of(tensor.dtype), tensor.shape);
    }
    return hf_files(std::move(out), options_.file_bytes);
  }

  DType dtype_of(DType saved) const {
    return options_.dtype && can_convert(saved) ? *options_.dtype : saved;
  }

  void write(const std::string& path, const FileHeader& header,
             std::span<const MappedTensor> tensors) {
    const std::string text = header_text(header);
    const auto file = files_.create(path);
    file->expect(header.file_bytes);
    file->append(std::as_bytes(std::span(text)));
    std::vector<std::size_t> saved;  // several that are as they were saved are read together
    const auto flush = [&] {
      for_each_block(files_, from_, manifest_, saved, options_.verify,
                     [&](std::size_t tensor, std::span<const std::byte> values) {
                       append(*file, values, manifest_.tensors[tensor].type.dtype);
                     });
      saved.clear();
    };
    for (const MappedTensor& tensor : tensors) {
      if (tensor.is_saved()) {
        saved.push_back(tensor.blocks[0].tensor);
        continue;
      }
      flush();
      write_mapped(*file, tensor);
    }
    flush();
    file->sync();
  }

  void write_mapped(OutputFile& file, const MappedTensor& tensor) {
    // As if it were the only one of a checkpoint: its rows are asked for as any others.
    Manifest alone;
    alone.tensors.push_back({tensor.name, {tensor.dtype, tensor.shape, {}}});
    constexpr std::array<std::size_t, 1> kOnly{0};
    std::vector<std::byte> buffer;
    for_each_batch(alone, kOnly, [&](std::span<const Rows> batch) {
      for (const Rows& rows : batch) {
        buffer.resize(rows.bytes);
        read_mapped(files_, from_, manifest_, tensor, rows.part, buffer,
                    {.verify = options_.verify});
        append(file, buffer, tensor.dtype);
      }
    });
  }

  void append(OutputFile& file, std::span<const std::byte> values, DType from) {
    const DType to = dtype_of(from);
    std::vector<std::byte> converted;
    if (from != to) {
      converted = convert(values, from, to);
      values = converted;
    }
    file.append(values);
    done_ += values.size();
    if (progress_) progress_(done_, all_);
  }

  Files& files_;
  const std::string& from_;
  const Manifest& manifest_;
  const ExportOptions& options_;
  const Progress& progress_;
  std::vector<MappedTensor> tensors_;  // that are exported
  std::uint64_t all_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace

void export_hf(Files& files, const std::string& from, const Manifest& manifest,
               const std::string& to, const ExportOptions& options, const Progress& progress) {
  Export(files, from, manifest, options, progress).run(to);
}

}  // namespace intarsia::checkpoint
