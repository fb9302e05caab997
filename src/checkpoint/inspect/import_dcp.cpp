#include "checkpoint/inspect/import_dcp.h"

#include <vector>

#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/inspect/dcp_folder.h"
#include "checkpoint/inspect/new_folder.h"
#include "checkpoint/plan/write_plan.h"
#include "checkpoint/transfer/rank_file.h"

namespace intarsia::checkpoint {

void import_dcp(Files& files, const std::string& folder, const std::string& root, std::int64_t step,
                bool with_values, const Progress& progress) {
  DcpFolder found = read_dcp_folder(files, folder, with_values);
  Manifest manifest;
  manifest.step = step;
  manifest.values = std::move(found.values);
  const Layout alone = Layout::replicated(Mesh({{"world", 1}}));
  std::uint64_t all = 0;
  for (const DcpTensor& tensor : found.tensors) {
    manifest.tensors.push_back({tensor.name, {tensor.dtype, tensor.shape, alone}});
    all += bytes_of(tensor.dtype, tensor.shape);
  }
  NewFolder target(files, join_path(root, step_name(step)));
  const RankFilePlan plan =
      plan_rank_file(manifest.tensors, WritePlan(manifest.tensors).of_rank(0));
  std::vector<std::byte> buffer;
  std::uint64_t done = 0;
  const ShareReader read = [&](const Share& share) -> std::span<const std::byte> {
    const DcpTensor& tensor = found.tensors[share.tensor];
    buffer.resize(bytes_of(tensor.dtype, tensor.shape));
    read_dcp_tensor(files, folder, tensor, buffer);
    done += buffer.size();
    if (progress) progress(done, all);
    return buffer;
  };
  const auto file = write_rank_file(files, target.path(), plan, read, 0, 1);
  if (file) manifest.files.push_back(*file);
  write_text(files, join_path(target.path(), kManifestName), manifest.to_text());
  target.commit();
}

}  // namespace intarsia::checkpoint
