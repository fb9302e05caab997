#include "tensor/move/agreement.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/hash.h"
#include "intarsia/collectives.h"

namespace intarsia {
namespace {

constexpr std::int64_t kMostBytes = 64 * 1024;  // that are hashed of a tensor

std::uint64_t hash_kind(const at::Tensor& t) {
  std::uint64_t h = static_cast<std::uint64_t>(t.scalar_type());
  for (const std::int64_t size : t.sizes()) h = hash_mix(h, static_cast<std::uint64_t>(size));
  return h;
}

std::uint64_t hash_bytes(std::uint64_t h, const at::Tensor& dense) {
  return hash_mix(h, hash_text({static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()}));
}

}  // namespace

std::uint64_t content_hash(const at::Tensor& t) {
  const std::uint64_t h = hash_kind(t);
  if (t.layout() != at::kStrided || !t.device().is_cpu() || t.numel() == 0 || t.is_conj() ||
      t.is_neg() || t._is_zerotensor())
    return h;
  if (static_cast<std::int64_t>(t.nbytes()) <= kMostBytes) return hash_bytes(h, t.contiguous());
  // Every n-th index of the longest dimension, so that about 64 KiB are read.
  std::int64_t longest = 0;
  for (std::int64_t d = 1; d < t.dim(); ++d) {
    if (t.size(d) > t.size(longest)) longest = d;
  }
  const std::int64_t step = std::min<std::int64_t>(
      t.size(longest), (static_cast<std::int64_t>(t.nbytes()) + kMostBytes - 1) / kMostBytes);
  return hash_bytes(h, t.slice(longest, 0, t.size(longest), step).contiguous());
}

std::uint64_t value_hash(const at::Tensor& t) {
  at::Tensor alike = t.resolve_conj().resolve_neg().contiguous();
  if (alike.is_complex()) alike = at::view_as_real(alike);
  if (alike.is_floating_point()) {
    alike = at::where(alike.isnan(), at::scalar_tensor(std::nan(""), alike.options()), alike) + 0.0;
  }
  return hash_bytes(hash_kind(t), alike.cpu());
}

Comm all_of(World& world, const Mesh& mesh) { return world.along(mesh, mesh.names()); }

std::vector<at::Tensor> exchange(const Comm& comm, const std::vector<std::int64_t>& mine,
                                 at::Device device, const Call& call) {
  const at::Tensor row = at::tensor(mine, at::kLong).unsqueeze(0).to(device);
  return all_gather(comm, row, 0, {}, call).tensor().cpu().unbind(0);
}

}  // namespace intarsia
