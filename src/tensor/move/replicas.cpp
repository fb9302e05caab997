#include "intarsia/replicas.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/collectives.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "layout/coordinates.h"
#include "tensor/core/impl.h"
#include "tensor/move/agreement.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

constexpr std::string_view kWhere = "assert_replicas";

/// Where two tensors differ; NaNs equal NaNs, also as one part of a complex number: as value_hash.
at::Tensor differences(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_complex()) {
    return differences(at::view_as_real(a.resolve_conj()), at::view_as_real(b.resolve_conj()))
        .any(-1);
  }
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

/// Places of a mesh that should hold the same, and do not.
struct Odd {
  std::int64_t one = 0;
  std::int64_t like = 0;  // what most of them hold
};

/// The first of them, by what each place holds (any number that is the same for the same).
std::optional<Odd> find_odd(const Layout& layout, const std::vector<std::int64_t>& held) {
  const Mesh& mesh = layout.mesh();
  std::map<std::int64_t, std::vector<std::int64_t>> replicas;  // by the first of them
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    replicas[place(mesh, original(layout, coordinate_at(mesh, p)))].push_back(p);
  }
  for (const auto& [unused, places] : replicas) {
    const auto alike = [&](std::int64_t p) {
      return std::count_if(places.begin(), places.end(), [&](std::int64_t other) {
        return held[static_cast<std::size_t>(other)] == held[static_cast<std::size_t>(p)];
      });
    };
    const std::int64_t like = *std::max_element(
        places.begin(), places.end(), [&](auto a, auto b) { return alike(a) < alike(b); });
    for (const std::int64_t p : places) {
      if (held[static_cast<std::size_t>(p)] != held[static_cast<std::size_t>(like)]) {
        return Odd{p, like};
      }
    }
  }
  return std::nullopt;
}

[[noreturn]] void refuse(const at::Tensor& t, std::string_view name, const Odd& odd,
                         const at::Tensor& one, const at::Tensor& like) {
  const Mesh& mesh = impl_of(t).spec()->layout.mesh();
  const at::Tensor wrong = differences(one, like).nonzero();
  std::vector<std::int64_t> at;
  std::vector<at::indexing::TensorIndex> index;
  for (std::int64_t d = 0; d < wrong.size(1); ++d) {
    at.push_back(wrong[0][d].item<std::int64_t>());
    index.emplace_back(at.back());
  }
  const auto text = [&](const at::Tensor& piece) {
    std::ostringstream out;
    out << (index.empty() ? piece : piece.index(index)).item();
    return out.str();
  };
  fail<WorldError>(kWhere, name.empty() ? "" : concat("'", name, "', "), describe(t), ": rank ",
                   mesh.rank_at(coordinate_at(mesh, odd.one)), " differs from rank ",
                   mesh.rank_at(coordinate_at(mesh, odd.like)), " in ", wrong.size(0),
                   " elements of their pieces, first at (", join(at), "): ", text(one), " and ",
                   text(like), ", though both should hold the same");
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
  const auto piece = [&](std::int64_t p) -> const at::Tensor& {
    return impl.pieces()[member[static_cast<std::size_t>(p)]];
  };
  std::vector<std::int64_t> held;  // the first place that holds the same
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    const std::int64_t first = place(mesh, original(layout, coordinate_at(mesh, p)));
    std::int64_t like = first;
    while (like < p && (place(mesh, original(layout, coordinate_at(mesh, like))) != first ||
                        (!piece(p).is_same(piece(like)) &&
                         differences(piece(p), piece(like)).any().item<bool>()))) {
      ++like;
    }
    held.push_back(like);
  }
  if (const auto odd = find_odd(layout, held)) {
    refuse(tensor, name, *odd, piece(odd->one), piece(odd->like));
  }
}

/// The piece of one place, at all of the mesh. COLLECTIVE: the mesh.
at::Tensor piece_at(const at::Tensor& tensor, const Comm& comm, std::int64_t p, const Call& call) {
  const DistributedImpl& impl = impl_of(tensor);
  const Layout& layout = impl.spec()->layout;
  const at::Tensor mine =
      comm.index() == p
          ? impl.pieces()[0].contiguous()
          : at::empty(local_shape(layout, tensor.sizes().vec(), coordinate_at(layout.mesh(), p)),
                      impl.pieces()[0].options());
  return broadcast(comm, {mine}, p, call).tensor();
}

/// Compares one tensor over all ranks of its mesh. COLLECTIVE: the mesh.
void compare_over_ranks(const at::Tensor& tensor, std::string_view name) {
  const DistributedImpl& impl = impl_of(tensor);
  const Layout& layout = impl.spec()->layout;
  const Comm comm = all_of(impl.world(), layout.mesh());
  const Call call{.tensor = name, .op = kWhere};
  const auto mine = static_cast<std::int64_t>(value_hash(impl.pieces()[0]));
  std::vector<std::int64_t> held;
  for (const at::Tensor& row : exchange(comm, {mine}, impl.world().device(), call)) {
    held.push_back(row.item<std::int64_t>());
  }
  const auto odd = find_odd(layout, held);
  if (!odd) return;
  const at::Tensor one = piece_at(tensor, comm, odd->one, call);
  refuse(tensor, name, *odd, one, piece_at(tensor, comm, odd->like, call));
}

/// Of the bytes of a piece.
std::uint64_t bits_hash(const at::Tensor& piece) {
  const at::Tensor dense = piece.resolve_conj().resolve_neg().contiguous().cpu();
  return hash_text({static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()});
}

/// Tensors on one mesh that are the same along the same axes.
struct Alike {
  World* world = nullptr;
  Mesh mesh;
  std::vector<std::string> axes;
  std::vector<const NamedTensors::value_type*> tensors;
};

/// Those of which this process holds one piece, and others the same.
std::vector<Alike> alike(const NamedTensors& tensors) {
  std::vector<Alike> out;
  for (const auto& each : tensors) {
    const DistributedImpl& impl = impl_of(each.second);
    const Layout& layout = impl.spec()->layout;
    std::vector<std::string> axes;
    for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
      if (layout.placement(a).is_replicate() && layout.mesh().size(a) > 1) {
        axes.push_back(layout.mesh().name(a));
      }
    }
    if (axes.empty() || impl.pieces().size() != 1 || impl.world().simulated()) continue;
    const auto same = [&](const Alike& group) {
      return group.world == &impl.world() && group.mesh == layout.mesh() && group.axes == axes;
    };
    auto group = std::find_if(out.begin(), out.end(), same);
    if (group == out.end()) {
      group = out.insert(out.end(), {&impl.world(), layout.mesh(), axes, {}});
    }
    group->tensors.push_back(&each);
  }
  return out;
}

/// One hash of all tensors goes along the axes, and whether any rank found another one over the
/// mesh; only then are tensors compared one by one. COLLECTIVE: the mesh.
void compare_together(const Alike& group) {
  const Call call{.op = kWhere};
  const at::Device device = group.world->device();
  std::uint64_t mine = 0;
  for (const auto* each : group.tensors) {
    mine = hash_mix(mine, bits_hash(impl_of(each->second).pieces()[0]));
  }
  const auto rows = exchange(group.world->along(group.mesh, group.axes),
                             {static_cast<std::int64_t>(mine)}, device, call);
  const bool differs = std::any_of(rows.begin(), rows.end(),
                                   [&](const at::Tensor& r) { return !at::equal(r, rows[0]); });
  const auto all = exchange(all_of(*group.world, group.mesh), {differs ? 1 : 0}, device, call);
  if (std::none_of(all.begin(), all.end(),
                   [](const at::Tensor& r) { return r.item<std::int64_t>() != 0; })) {
    return;
  }
  for (const auto* each : group.tensors) compare_over_ranks(each->second, each->first);
}

}  // namespace

void assert_replicas(const NamedTensors& tensors) {
  const BelowAutograd below;
  for (const auto& [name, tensor] : tensors) {
    if (!is_ours(tensor)) {
      fail<ValueError>(kWhere, "takes distributed tensors, not ",
                       name.empty() ? "" : concat("'", name, "', "), describe(tensor));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (impl_of(tensor).pieces().size() > 1) compare_hosted(tensor, name);
  }
  for (const Alike& group : alike(tensors)) compare_together(group);
}

void assert_replicas(const at::Tensor& tensor, std::string_view name) {
  assert_replicas(NamedTensors{{std::string(name), tensor}});
}

}  // namespace intarsia
