#include "checkpoint/inspect/reshard.h"

#include <vector>

#include "base/text.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/inspect/new_folder.h"
#include "checkpoint/plan/write_plan.h"
#include "checkpoint/transfer/rank_file.h"
#include "checkpoint/transfer/read_parts.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {

void reshard(Files& files, const std::string& from, const Manifest& manifest,
             const std::string& root, std::int64_t count, const Progress& progress) {
  if (count < 1) fail<ValueError>("checkpoint", count, " files hold nothing");
  Manifest made{.step = manifest.step, .world = count, .values = manifest.values};
  const Layout everywhere = Layout::replicated(Mesh({{"file", count}}));
  std::uint64_t all = 0;
  for (const auto& [name, type] : manifest.tensors) {
    made.tensors.push_back({name, {type.dtype, type.shape, everywhere}});
    all += bytes_of(type.dtype, type.shape);
  }
  NewFolder target(files, join_path(root, step_name(made.step)));
  const WritePlan plan(made.tensors);
  std::vector<std::byte> buffer;
  std::uint64_t done = 0;
  const ShareReader read = [&](const Share& share) -> std::span<const std::byte> {
    buffer.resize(bytes_of(made.tensors[share.tensor].type.dtype, share.part.shape));
    const Wanted wanted{share.tensor, share.part, buffer};
    read_parts(files, from, manifest, std::span(&wanted, 1));
    done += buffer.size();
    if (progress) progress(done, all);
    return buffer;
  };
  for (std::int64_t rank = 0; rank < count; ++rank) {
    const auto file = write_rank_file(
        files, target.path(), plan_rank_file(made.tensors, plan.of_rank(rank)), read, rank, count);
    if (file) made.files.push_back(*file);
  }
  write_text(files, join_path(target.path(), kManifestName), made.to_text());
  target.commit();
}

}  // namespace intarsia::checkpoint
