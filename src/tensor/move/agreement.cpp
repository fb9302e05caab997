#include "tensor/move/agreement.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "layout/coordinates.h"
#include "tensor/core/impl.h"
#include "world/session/hosted_coordinates.h"

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

/// Where two tensors differ; NaNs equal NaNs.
at::Tensor differences(const at::Tensor& a, const at::Tensor& b) {
  return a.ne(b).logical_and(a.isnan().logical_and(b.isnan()).logical_not());
}

/// The place with index 0 on every axis along which the tensor is the same.
Coordinate original(const Layout& layout, Coordinate at) {
  for (std::size_t a = 0; a < at.size(); ++a) {
    if (layout.placement(a).is_replicate()) at[a] = 0;
  }
  return at;
}

std::int64_t place(const Mesh& mesh, const Coordinate& at) {
  std::int64_t p = 0;
  for (std::size_t a = 0; a < mesh.axes(); ++a) p = p * mesh.size(a) + at[a];
  return p;
}

[[noreturn]] void refuse(const at::Tensor& t, std::string_view name, std::int64_t rank,
                         std::int64_t like, const std::string& where) {
  fail<WorldError>("assert_replicas", name.empty() ? "" : concat("'", name, "', "), describe(t),
                   ": rank ", rank, " differs from rank ", like, where,
                   ", though both should hold the same");
}

/// Compares pieces that all live here.
void compare_hosted(const at::Tensor& tensor, std::string_view name) {
  const DistributedImpl& impl = impl_of(tensor);
  const Layout& layout = impl.spec()->layout;
  const Mesh& mesh = layout.mesh();
  const auto here = hosted_coordinates(impl.world(), mesh);
  std::vector<std::size_t> member(static_cast<std::size_t>(mesh.size()));  // by place
  for (std::size_t m = 0; m < here.size(); ++m) {
    member[static_cast<std::size_t>(place(mesh, here[m]))] = m;
  }
  for (std::size_t m = 0; m < here.size(); ++m) {
    const Coordinate first = original(layout, here[m]);
    const at::Tensor& a = impl.pieces()[m];
    const at::Tensor& b = impl.pieces()[member[static_cast<std::size_t>(place(mesh, first))]];
    if (a.is_same(b)) continue;
    const at::Tensor wrong = differences(a, b).nonzero();
    if (wrong.size(0) == 0) continue;
    std::vector<std::int64_t> at;
    std::vector<at::indexing::TensorIndex> index;
    for (std::int64_t d = 0; d < wrong.size(1); ++d) {
      at.push_back(wrong[0][d].item<std::int64_t>());
      index.emplace_back(at.back());
    }
    const auto text = [&](const at::Tensor& t) {
      std::ostringstream out;
      out << (index.empty() ? t : t.index(index)).item();
      return out.str();
    };
    refuse(tensor, name, mesh.rank_at(here[m]), mesh.rank_at(first),
           concat(" in ", wrong.size(0), " elements of their pieces, first at (", join(at),
                  "): ", text(a), " and ", text(b)));
  }
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

void assert_replicas(const at::Tensor& tensor, std::string_view name) {
  if (!is_ours(tensor)) {
    fail<ValueError>("assert_replicas", "takes a distributed tensor, not ", describe(tensor));
  }
  const BelowAutograd below;
  const DistributedImpl& impl = impl_of(tensor);
  if (impl.pieces().size() > 1) return compare_hosted(tensor, name);
  const Layout& layout = impl.spec()->layout;
  const Mesh& mesh = layout.mesh();
  const Comm comm = all_of(impl.world(), mesh);
  if (impl.pieces().empty() || comm.size() == 1 || impl.world().simulated()) return;
  const std::uint64_t mine = value_hash(impl.pieces()[0]);
  const auto rows = exchange(comm, {static_cast<std::int64_t>(mine)}, impl.world().device(),
                             {.tensor = name, .op = "assert_replicas"});
  for (std::int64_t p = 0; p < comm.size(); ++p) {
    const Coordinate first = original(layout, coordinate_at(mesh, p));
    if (at::equal(rows[static_cast<std::size_t>(p)],
                  rows[static_cast<std::size_t>(place(mesh, first))])) {
      continue;
    }
    refuse(tensor, name, mesh.rank_at(coordinate_at(mesh, p)), mesh.rank_at(first), "");
  }
}

}  // namespace intarsia
