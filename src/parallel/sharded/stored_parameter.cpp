#include "parallel/sharded/stored_parameter.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/move/exchange.h"

namespace intarsia {
namespace {

std::int64_t ranks_along(const Mesh& mesh, const std::vector<std::string>& axes) {
  std::int64_t n = 1;
  for (const std::string& axis : axes) n *= mesh.size(mesh.axis_index(axis));
  return n;
}

/// The coordinate of the i-th rank of a group along axes, the first of which varies slowest.
Coordinate place_in(const Mesh& mesh, const std::vector<std::string>& axes, Coordinate at,
                    std::int64_t i) {
  for (std::size_t a = axes.size(); a-- > 0;) {
    const std::size_t axis = mesh.axis_index(axes[a]);
    at[axis] = i % mesh.size(axis);
    i /= mesh.size(axis);
  }
  return at;
}

/// Copies between an unsharded tensor, which the ranks shard evenly along `dim`, and rows, one for
/// each rank, in which its part begins at `offset`.
struct EvenShards {
  const at::Tensor& unsharded;
  const at::Tensor& rows;  ///< (ranks, length)
  std::int64_t offset;
  const Shape& part;
  std::int64_t dim;

  std::int64_t ranks() const { return rows.size(0); }
  at::Tensor parts_of_unsharded() const {
    const std::int64_t length = part[static_cast<std::size_t>(dim)];
    return unsharded.unflatten(dim, {ranks(), length}).movedim(dim, 0);
  }
  at::Tensor parts_of_rows() const {
    return rows.narrow(1, offset, elements(part)).unflatten(1, to_ref(part));
  }
  /// Both are plain memory: each run of elements is one copy, which is much quicker for small ones.
  bool is_plain() const {
    return unsharded.is_cpu() && rows.is_cpu() && unsharded.scalar_type() == rows.scalar_type() &&
           unsharded.is_contiguous() && rows.is_contiguous();
  }
  void copy_runs(bool into_unsharded) const {
    const auto size = static_cast<std::int64_t>(unsharded.element_size());
    std::int64_t outer = 1;
    for (std::int64_t d = 0; d < dim; ++d) outer *= part[static_cast<std::size_t>(d)];
    const std::int64_t run = elements(part) / outer * size;
    const std::int64_t row = rows.size(1) * size;
    auto* in_unsharded = static_cast<char*>(unsharded.data_ptr());
    auto* in_rows = static_cast<char*>(rows.data_ptr()) + offset * size;
    for (std::int64_t o = 0; o < outer; ++o) {
      for (std::int64_t r = 0; r < ranks(); ++r) {
        char* a = in_unsharded + (o * ranks() + r) * run;
        char* b = in_rows + r * row + o * run;
        std::memcpy(into_unsharded ? a : b, into_unsharded ? b : a, static_cast<std::size_t>(run));
      }
    }
  }
  void to_unsharded() const {
    if (elements(part) == 0) return;
    if (is_plain()) return copy_runs(true);
    parts_of_unsharded().copy_(parts_of_rows());
  }
  void to_rows(bool add) const {
    if (elements(part) == 0) return;
    if (add) {
      parts_of_rows().add_(parts_of_unsharded());
    } else if (is_plain()) {
      copy_runs(false);
    } else {
      parts_of_rows().copy_(parts_of_unsharded());
    }
  }
};

/// Copies what two pieces share. Either may be any tensor with the right sizes.
void copy_part(const Part& part, const at::Tensor& from, bool from_old, const at::Tensor& to,
               const Shape& old_sizes, const Shape& new_sizes, bool add) {
  for (const Block& b : part.blocks) {
    const at::Tensor source = from_old ? block_of(from, b.sizes, old_sizes, b.in_old)
                                       : block_of(from, b.sizes, new_sizes, b.in_new);
    const at::Tensor target = from_old ? block_of(to, b.sizes, new_sizes, b.in_new)
                                       : block_of(to, b.sizes, old_sizes, b.in_old);
    add ? target.add_(source) : target.copy_(source);
  }
}

/// Which parts of what is used each of the shard ranks stores.
void find_parts(Stored& p, const FullyShardOptions& options, const std::vector<Coordinate>& here) {
  const Layout& stored = p.stored->layout;
  const std::int64_t n = ranks_along(stored.mesh(), options.shard);
  std::int64_t dim = -1;
  for (const std::string& axis : options.shard) {
    const Placement& placement = stored.placement(axis);
    if (placement.is_shard()) dim = placement.dim();
  }
  const bool even =
      dim >= 0 && std::all_of(p.used_sizes.begin(), p.used_sizes.end(), [&](const Shape& sizes) {
        return sizes[static_cast<std::size_t>(dim)] % n == 0;
      });
  if (even) {
    p.even = dim;
    return;
  }
  for (const Coordinate& at : here) {
    std::vector<RankPart> parts;
    const Boxes mine = boxes(p.used->layout, p.used->sizes, at);
    for (std::int64_t r = 0; r < n; ++r) {
      const Coordinate other = place_in(stored.mesh(), options.shard, at, r);
      const Boxes theirs = boxes(stored, p.stored->sizes, other);
      parts.push_back({theirs.local_shape(), shared_part(theirs, mine)});
    }
    p.parts.push_back(std::move(parts));
  }
}

}  // namespace

at::Tensor part_of(const at::Tensor& flat, std::int64_t offset, const Shape& sizes) {
  return flat.as_strided(to_ref(sizes), to_ref(strides_of(sizes)), flat.storage_offset() + offset);
}

at::Tensor Stored::lock() const {
  auto impl = tensor.lock();
  return impl ? at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
                    impl.release()))
              : at::Tensor();
}

bool Stored::gives_gradient() const {
  const at::Tensor t = lock();
  if (!t.defined() || !t.requires_grad()) return false;
  const auto& extra = impl_of(t).extra();
  return extra && extra->on_use && extra->on_use->takes_gradients;
}

void Stored::take_from_rows(std::size_t member, const at::Tensor& rows, std::int64_t offset,
                            const at::Tensor& used_piece) const {
  if (even >= 0) {
    return EvenShards{used_piece, rows, offset, stored_sizes[member], even}.to_unsharded();
  }
  for (std::int64_t r = 0; r < rows.size(0); ++r) {
    const auto& [sizes, part] = parts[member][static_cast<std::size_t>(r)];
    if (part.count == 0) continue;
    copy_part(part, rows[r].narrow(0, offset, elements(sizes)), true, used_piece, sizes,
              used_sizes[member], false);
  }
}

void Stored::put_into_rows(std::size_t member, const at::Tensor& gradient_piece, bool add,
                           const at::Tensor& rows, std::int64_t offset) const {
  if (even >= 0) {
    return EvenShards{gradient_piece, rows, offset, stored_sizes[member], even}.to_rows(add);
  }
  const at::Tensor contiguous = gradient_piece.contiguous();
  for (std::int64_t r = 0; r < rows.size(0); ++r) {
    const auto& [sizes, part] = parts[member][static_cast<std::size_t>(r)];
    if (part.count == 0) continue;
    copy_part(part, contiguous, false, rows[r].narrow(0, offset, elements(sizes)), sizes,
              used_sizes[member], add);
  }
}

void Stored::take_own(std::size_t member, std::int64_t rank, const at::Tensor& used_piece,
                      const at::Tensor& piece) const {
  if (even >= 0) {
    const std::int64_t length = stored_sizes[member][static_cast<std::size_t>(even)];
    piece.copy_(used_piece.narrow(even, rank * length, length));
  } else {
    copy_part(parts[member][static_cast<std::size_t>(rank)].shared, used_piece.contiguous(), false,
              piece, stored_sizes[member], used_sizes[member], false);
  }
}

DistributedImpl& distributed(const ShardedParameter& parameter) {
  if (!has_layout(parameter.tensor)) {
    fail<ValueError>("fully_shard", "parameter '", parameter.name, "' is ",
                     describe(parameter.tensor), "; distribute it first, or use build_sharded()");
  }
  return impl_of(parameter.tensor);
}

void check_shardable(const ShardedParameter& given, const FullyShardOptions& options,
                     const Mesh& mesh) {
  constexpr std::string_view where = "fully_shard";
  const bool plain = !has_layout(given.tensor);
  const Layout layout = plain ? *given.use : layout_of(given.tensor);
  if (layout.mesh() != mesh) {
    fail<ValueError>(where, "parameter '", given.name, "' is on ", layout.mesh(), ", others on ",
                     mesh, "; shard them by a call of its own");
  }
  if (!plain && impl_of(given.tensor).extra() && impl_of(given.tensor).extra()->on_use) {
    fail<ValueError>(where, "parameter '", given.name, "' is sharded already");
  }
  const Layout use = given.use.value_or(layout);
  const Layout stored =
      sharded_layout(use, static_cast<std::size_t>(given.tensor.dim()), options, given.name);
  if (layout == use || layout == stored) return;
  fail<ValueError>(where, "parameter '", given.name, "' is ", describe(given.tensor),
                   ", which is neither how it is used, ", use, ", nor how it is stored, ", stored);
}

Stored stored_parameter(const ShardedParameter& given, const FullyShardOptions& options,
                        const std::vector<Coordinate>& here) {
  const Spec& spec = distributed(given).spec();
  const Layout use = given.use.value_or(spec->layout);
  const std::size_t dims = spec->sizes.size();
  Stored p{.name = given.name,
           .tensor = c10::weak_intrusive_ptr<c10::TensorImpl>(given.tensor.getIntrusivePtr())};
  const Layout stored = sharded_layout(use, dims, options, given.name);
  const bool casts = options.param_dtype && c10::isFloatingType(spec->dtype);
  p.stored = Spec(stored, spec->sizes, spec->dtype);
  p.used = Spec(use, spec->sizes, casts ? *options.param_dtype : spec->dtype);
  p.gradient = without_partial(use);
  for (const auto* axes : {&options.shard, &options.replicate}) {
    for (const std::string& axis : *axes) {
      p.gradient = p.gradient.with(axis, Placement::partial(Reduction::sum));
    }
  }
  for (const Coordinate& at : here) {
    p.stored_sizes.push_back(local_shape(stored, spec->sizes, at));
    p.used_sizes.push_back(local_shape(use, spec->sizes, at));
  }
  find_parts(p, options, here);
  // The first rank has the longest piece, whichever dimension is sharded.
  for (const Coordinate& at : here) {
    const Coordinate first = place_in(stored.mesh(), options.shard, at, 0);
    p.longest = std::max(p.longest, elements(local_shape(stored, spec->sizes, first)));
  }
  return p;
}

}  // namespace intarsia
