#include "parallel/sharded/shard_group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/redistribute.h"
#include "intarsia/tensor.h"
#include "layout/chunk.h"
#include "tensor/move/exchange.h"
#include "tensor/move/state.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }

std::int64_t size_of(at::ScalarType dtype) {
  return static_cast<std::int64_t>(c10::elementSize(dtype));
}

/// A piece of a flat buffer of bytes.
at::Tensor typed(const at::Tensor& bytes, std::int64_t offset, const Shape& sizes,
                 at::ScalarType dtype) {
  return bytes.narrow(0, offset, elements(sizes) * size_of(dtype)).view(dtype).view(to_ref(sizes));
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

/// A part of a flat buffer with these sizes, row-major.
at::Tensor part_of(const at::Tensor& flat, std::int64_t offset, const Shape& sizes) {
  return flat.as_strided(to_ref(sizes), to_ref(strides_of(sizes)), flat.storage_offset() + offset);
}

/// Between a whole tensor that ranks cut evenly along `dim` and rows, one for each rank, in which
/// its part begins at `offset`.
struct EvenCut {
  const at::Tensor& whole;
  const at::Tensor& rows;  ///< (ranks, length)
  std::int64_t offset;
  const Shape& part;
  std::int64_t dim;

  std::int64_t ranks() const { return rows.size(0); }
  at::Tensor parts_of_whole() const {
    const std::int64_t length = part[static_cast<std::size_t>(dim)];
    return whole.unflatten(dim, {ranks(), length}).movedim(dim, 0);
  }
  at::Tensor parts_of_rows() const {
    return rows.narrow(1, offset, elements(part)).unflatten(1, to_ref(part));
  }
  /// Both are plain memory: each run of elements is one copy, which is much quicker for small ones.
  bool is_plain() const {
    return whole.is_cpu() && rows.is_cpu() && whole.scalar_type() == rows.scalar_type() &&
           whole.is_contiguous() && rows.is_contiguous();
  }
  void copy_runs(bool into_whole) const {
    const auto size = static_cast<std::int64_t>(whole.element_size());
    std::int64_t outer = 1;
    for (std::int64_t d = 0; d < dim; ++d) outer *= part[static_cast<std::size_t>(d)];
    const std::int64_t run = elements(part) / outer * size;
    const std::int64_t row = rows.size(1) * size;
    auto* in_whole = static_cast<char*>(whole.data_ptr());
    auto* in_rows = static_cast<char*>(rows.data_ptr()) + offset * size;
    for (std::int64_t o = 0; o < outer; ++o) {
      for (std::int64_t r = 0; r < ranks(); ++r) {
        char* a = in_whole + (o * ranks() + r) * run;
        char* b = in_rows + r * row + o * run;
        std::memcpy(into_whole ? a : b, into_whole ? b : a, static_cast<std::size_t>(run));
      }
    }
  }
  void to_whole() const {
    if (elements(part) == 0) return;
    if (is_plain()) return copy_runs(true);
    parts_of_whole().copy_(parts_of_rows());
  }
  void to_rows(bool add) const {
    if (elements(part) == 0) return;
    if (add) {
      parts_of_rows().add_(parts_of_whole());
    } else if (is_plain()) {
      copy_runs(false);
    } else {
      parts_of_rows().copy_(parts_of_whole());
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

/// Whether a gradient of it comes here.
bool gives_gradient(const Stored& p) {
  const at::Tensor t = p.lock();
  if (!t.defined() || !t.requires_grad()) return false;
  const auto& extra = impl_of(t).extra();
  return extra && extra->on_use && extra->on_use->takes_gradients;
}

}  // namespace

at::Tensor Stored::lock() const {
  auto impl = tensor.lock();
  return impl ? at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(
                    impl.release()))
              : at::Tensor();
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
  const Layout lies = plain ? *given.use : layout_of(given.tensor);
  if (lies.mesh() != mesh) {
    fail<ValueError>(where, "parameter '", given.name, "' lies on ", lies.mesh(), ", others on ",
                     mesh, "; shard them by a call of its own");
  }
  if (!plain && impl_of(given.tensor).extra() && impl_of(given.tensor).extra()->on_use) {
    fail<ValueError>(where, "parameter '", given.name, "' is sharded already");
  }
  const Layout use = given.use.value_or(lies);
  const Layout stored =
      sharded_layout(use, static_cast<std::size_t>(given.tensor.dim()), options, given.name);
  if (lies == use || lies == stored) return;
  fail<ValueError>(where, "parameter '", given.name, "' is ", describe(given.tensor),
                   ", which is neither how it is used, ", use, ", nor how it is stored, ", stored);
}

ShardGroup::ShardGroup(ParameterGroup group, const FullyShardOptions& options, World& world,
                       const Mesh& mesh)
    : name_(std::move(group.name)),
      options_(options),
      world_(world),
      state_(TensorState::of(world)),
      mesh_(mesh),
      shard_(world.along(mesh, options.shard, "gathers")),
      reduced_(world.along(mesh, options.shard, "gradients")),
      shard_text_(join(options.shard, ",")),
      replicate_text_(join(options.replicate, ",")),
      here_(hosted_coordinates(world, mesh)) {
  if (!options.replicate.empty()) {
    Comm comm = world.along(mesh, options.replicate, "gradients");
    if (comm.size() > 1) replicate_ = std::move(comm);
  }
  for (const ShardedParameter& p : group.parameters) {
    parameters_.push_back(describe_parameter(p));
  }
  for (Lane& lane : lanes_) lane.length += static_cast<std::int64_t>(lane.parameters.size());
  taken_.assign(parameters_.size(), false);
  arrived_.assign(parameters_.size(), false);
  store();
  report_.name = name_;
  report_.gather_bytes = static_cast<std::uint64_t>(used_length_);
  for (const Lane& lane : lanes_) {
    report_.reduce_bytes +=
        static_cast<std::uint64_t>(shard_.size() * lane.length * size_of(lane.dtype));
  }
}

Stored ShardGroup::describe_parameter(const ShardedParameter& given) {
  const Spec& spec = distributed(given).spec();
  const Layout use = given.use.value_or(spec->layout);
  const std::size_t dims = spec->sizes.size();
  Stored p{.name = given.name,
           .tensor = c10::weak_intrusive_ptr<c10::TensorImpl>(given.tensor.getIntrusivePtr())};
  const Layout stored = sharded_layout(use, dims, options_, given.name);
  const bool casts = options_.param_dtype && c10::isFloatingType(spec->dtype);
  p.stored = Spec(stored, spec->sizes, spec->dtype);
  p.used = Spec(use, spec->sizes, casts ? *options_.param_dtype : spec->dtype);
  p.gradient = without_partial(use);
  for (const auto* axes : {&options_.shard, &options_.replicate}) {
    for (const std::string& axis : *axes) {
      p.gradient = p.gradient.with(axis, Placement::partial(Reduction::sum));
    }
  }
  casts_ |= p.used->dtype != spec->dtype;
  for (const Coordinate& at : here_) {
    p.stored_sizes.push_back(local_shape(stored, spec->sizes, at));
    p.used_sizes.push_back(local_shape(use, spec->sizes, at));
  }
  find_parts(p);
  // The first rank has the longest piece of every cut.
  std::int64_t longest = 0;
  for (const Coordinate& at : here_) {
    const Coordinate first = place_in(mesh_, options_.shard, at, 0);
    longest = std::max(longest, elements(local_shape(stored, spec->sizes, first)));
  }
  const auto next = [&](std::int64_t& end, at::ScalarType dtype) {
    const Slot slot{end, longest * size_of(dtype)};
    end += aligned(slot.length);
    return slot;
  };
  p.slot = next(length_, p.used->dtype);
  p.stored_slot = next(stored_length_, spec->dtype);
  p.place = used_length_;
  std::int64_t most = 0;
  for (const Shape& sizes : p.used_sizes) most = std::max(most, elements(sizes));
  used_length_ += aligned(most * size_of(p.used->dtype));
  const at::ScalarType reduced =
      c10::isFloatingType(spec->dtype) ? options_.reduce_dtype.value_or(spec->dtype) : spec->dtype;
  const auto lane =
      std::find_if(lanes_.begin(), lanes_.end(), [&](const Lane& l) { return l.dtype == reduced; });
  p.lane = static_cast<std::size_t>(lane - lanes_.begin());
  if (lane == lanes_.end()) lanes_.push_back({.dtype = reduced});
  p.gradient_slot = {lanes_[p.lane].length, longest};
  lanes_[p.lane].length += longest;
  lanes_[p.lane].parameters.push_back(parameters_.size());
  return p;
}

void ShardGroup::find_parts(Stored& p) {
  const Layout& stored = p.stored->layout;
  const std::int64_t n = shard_.size();
  std::int64_t dim = -1;
  for (const std::string& axis : options_.shard) {
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
  for (const Coordinate& at : here_) {
    std::vector<RankPart> parts;
    const Boxes mine = boxes(p.used->layout, p.used->sizes, at);
    for (std::int64_t r = 0; r < n; ++r) {
      const Coordinate other = place_in(mesh_, options_.shard, at, r);
      const Boxes theirs = boxes(stored, p.stored->sizes, other);
      parts.push_back({theirs.local_shape(), shared_part(theirs, mine)});
    }
    p.parts.push_back(std::move(parts));
  }
}

void ShardGroup::store() {
  const at::NoGradGuard no_grad;
  const BelowAutograd below;
  const bool elsewhere = options_.offload && !world_.simulated();
  const at::Device device = elsewhere ? at::Device(at::kCPU) : world_.piece_device();
  for (std::size_t m = 0; m < here_.size(); ++m) {
    stored_.push_back(at::zeros({stored_length_}, at::TensorOptions(device).dtype(at::kByte)));
  }
  for (Stored& p : parameters_) {
    const at::Tensor parameter = p.lock();
    DistributedImpl& impl = impl_of(parameter);
    Pieces pieces;
    for (std::size_t m = 0; m < here_.size(); ++m) {
      const at::Tensor& old = impl.pieces()[m];
      at::Tensor piece =
          typed(stored_[m], p.stored_slot.offset, p.stored_sizes[m], p.stored->dtype);
      if (impl.spec()->layout == p.stored->layout) {
        piece.copy_(old);
      } else if (p.even >= 0) {
        const std::int64_t length = p.stored_sizes[m][static_cast<std::size_t>(p.even)];
        piece.copy_(old.narrow(p.even, shard_.members()[m].index * length, length));
      } else {
        const auto me = static_cast<std::size_t>(shard_.members()[m].index);
        copy_part(p.parts[m][me].shared, old.contiguous(), false, piece, p.stored_sizes[m],
                  p.used_sizes[m], false);
      }
      pieces.push_back(std::move(piece));
    }
    impl.replace(p.stored, std::move(pieces));
  }
}

bool ShardGroup::trains() const {
  return std::any_of(parameters_.begin(), parameters_.end(), gives_gradient);
}

at::Tensor ShardGroup::make(const Spec& spec, Pieces pieces) const {
  return make_tensor(world_.shared_from_this(), state_, spec, std::move(pieces));
}

/// What this rank sends: its store as it is, or a copy in the dtype of use.
std::vector<at::Tensor> ShardGroup::gather_input() {
  std::vector<at::Tensor> in;
  for (std::size_t m = 0; m < here_.size(); ++m) {
    // Someone may have given a parameter other pieces.
    for (const Stored& p : parameters_) {
      const at::Tensor parameter = p.lock();
      if (!parameter.defined()) continue;
      const at::Tensor& piece = impl_of(parameter).pieces()[m];
      if (!piece.is_alias_of(stored_[m])) {
        typed(stored_[m], p.stored_slot.offset, p.stored_sizes[m], p.stored->dtype).copy_(piece);
      }
    }
    const bool elsewhere = options_.offload && world_.piece_device() != stored_[m].device();
    if (!casts_) {
      in.push_back(elsewhere ? stored_[m].to(world_.piece_device()) : stored_[m]);
      continue;
    }
    at::Tensor cast = at::empty({length_}, stored_[m].options());
    for (const Stored& p : parameters_) {
      typed(cast, p.slot.offset, p.stored_sizes[m], p.used->dtype)
          .copy_(typed(stored_[m], p.stored_slot.offset, p.stored_sizes[m], p.stored->dtype));
    }
    in.push_back(elsewhere ? cast.to(world_.piece_device()) : cast);
  }
  return in;
}

void ShardGroup::gather() {
  const BelowAutograd below;
  ++report_.gathers;
  if (!is_alone()) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(length_) * here_.size();
    state_.bill().charge_own("fully_shard", name_, shard_text_, "S->R", bytes);
  }
  gathering_.emplace(
      all_gather(shard_, gather_input(), 0, {},
                 Call{.tensor = name_, .op = "fully_shard", .module = module_path()}));
}

double ShardGroup::complete() {
  if (!gathering_) return 0;
  const BelowAutograd below;
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<at::Tensor> gathered = gathering_->wait();
  const double waited =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  gathering_.reset();
  std::vector<Pieces> pieces(parameters_.size());
  for (std::size_t m = 0; m < here_.size(); ++m) {
    const at::Tensor all =
        is_alone() ? gathered[m] : at::empty({used_length_}, gathered[m].options());
    at::Tensor typed_all;
    at::Tensor rows;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const Stored& p = parameters_[i];
      const std::int64_t size = size_of(p.used->dtype);
      if (!typed_all.defined() || typed_all.scalar_type() != p.used->dtype) {
        typed_all = all.view(p.used->dtype);
        rows = gathered[m].view(p.used->dtype).view({shard_.size(), length_ / size});
      }
      const std::int64_t place = is_alone() ? p.slot.offset : p.place;
      pieces[i].push_back(part_of(typed_all, place / size, p.used_sizes[m]));
      if (!is_alone()) unpack(p, m, rows, pieces[i][m]);
    }
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    used_.push_back(make(parameters_[i].used, std::move(pieces[i])));
  }
  return waited;
}

/// Puts what the shard ranks sent, each in its row, into what is used.
void ShardGroup::unpack(const Stored& p, std::size_t member, const at::Tensor& rows,
                        const at::Tensor& used) const {
  const std::int64_t offset = p.slot.offset / size_of(p.used->dtype);
  if (p.even >= 0) return EvenCut{used, rows, offset, p.stored_sizes[member], p.even}.to_whole();
  for (std::int64_t r = 0; r < shard_.size(); ++r) {
    const auto& [sizes, part] = p.parts[member][static_cast<std::size_t>(r)];
    if (part.count == 0) continue;
    copy_part(part, rows[r].narrow(0, offset, elements(sizes)), true, used, sizes,
              p.used_sizes[member], false);
  }
}

void ShardGroup::drop() {
  gathering_.reset();
  used_.clear();
}

// ---- gradients ---------------------------------------------------------------------------------

ShardGroup::Lane& ShardGroup::begin_lane(std::size_t index) {
  Lane& lane = lanes_[index];
  if (lane.terms.empty()) {
    const auto options = at::TensorOptions(world_.piece_device()).dtype(lane.dtype);
    for (std::size_t m = 0; m < here_.size(); ++m) {
      lane.terms.push_back(at::empty({shard_.size(), lane.length}, options));
    }
  }
  return lane;
}

void ShardGroup::take_gradient(std::size_t index, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const BelowAutograd below;
  const Stored& p = parameters_[index];
  if (gradient.requires_grad()) {
    fail<UnsupportedError>("fully_shard", "the gradient of '", p.name,
                           "' has a graph of its own (create_graph), which reducing it in a group "
                           "would cut; use torch::autograd::grad for gradients of gradients");
  }
  at::Tensor whole =
      is_ours(gradient) ? gradient : distribute(gradient, without_partial(p.used->layout), world_);
  const Spec spec = impl_of(whole).spec();
  Pieces pieces = impl_of(whole).pieces();
  if (spec->layout != p.gradient) {
    const PlanPointer plan = state_.plan(spec, p.gradient);
    if (!plan) {
      fail<ValueError>("fully_shard", "the gradient of '", p.name, "' is ", describe(whole),
                       ", from which no exact way leads to ", p.gradient,
                       "; reduce it to R before it gets there");
    }
    pieces = state_.move(spec, pieces, plan, {.op = "gradient", .implicit = false});
  }
  begin_lane(p.lane);
  for (std::size_t m = 0; m < here_.size(); ++m) pack(p, m, pieces[m], taken_[index]);
  taken_[index] = true;
  arrived_[index] = true;
}

/// Puts a gradient into the parts of those that store it.
void ShardGroup::pack(const Stored& p, std::size_t member, const at::Tensor& gradient, bool add) {
  const at::Tensor& rows = lanes_[p.lane].terms[member];
  if (p.even >= 0) {
    const Shape& part = p.stored_sizes[member];
    return EvenCut{gradient, rows, p.gradient_slot.offset, part, p.even}.to_rows(add);
  }
  const at::Tensor whole = gradient.contiguous();
  for (std::int64_t r = 0; r < shard_.size(); ++r) {
    const auto& [sizes, part] = p.parts[member][static_cast<std::size_t>(r)];
    if (part.count == 0) continue;
    copy_part(part, whole, false, rows[r].narrow(0, p.gradient_slot.offset, elements(sizes)), sizes,
              p.used_sizes[member], add);
  }
}

bool ShardGroup::is_ready() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!arrived_[i] && gives_gradient(parameters_[i])) return false;
  }
  return has_any();
}

bool ShardGroup::has_any() const {
  return std::find(taken_.begin(), taken_.end(), true) != taken_.end();
}

void ShardGroup::keep_gradients() {
  const at::NoGradGuard no_grad;
  arrived_.assign(parameters_.size(), false);
  kept_.assign(parameters_.size(), {});
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Stored& p = parameters_[i];
    const at::Tensor parameter = taken_[i] ? p.lock() : at::Tensor();
    if (!parameter.defined()) continue;
    if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    kept_[i] = {parameter.grad(), parameter.grad()._version()};
  }
}

void ShardGroup::drop_kept_gradients() {
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    const Kept& kept = kept_[i];
    const at::Tensor parameter = kept.gradient.defined() ? parameters_[i].lock() : at::Tensor();
    if (!parameter.defined()) continue;
    const at::Tensor& now = parameter.grad();
    const bool stays =
        now.defined() && now.is_same(kept.gradient) && now._version() == kept.version;
    if (!stays) taken_[i] = false;
  }
  kept_.clear();
}

void ShardGroup::forget_gradients() {
  kept_.clear();
  reducing_.clear();
  for (const Stored& p : parameters_) {
    if (at::Tensor parameter = p.lock(); parameter.defined()) parameter.mutable_grad().reset();
  }
  for (Lane& lane : lanes_) lane.terms.clear();
  taken_.assign(parameters_.size(), false);
  arrived_.assign(parameters_.size(), false);
}

void ShardGroup::reduce() {
  const at::NoGradGuard no_grad;
  const BelowAutograd below;
  ++report_.reductions;
  for (std::size_t l = 0; l < lanes_.size(); ++l) {
    Lane& lane = begin_lane(l);
    const std::int64_t marks = lane.length - static_cast<std::int64_t>(lane.parameters.size());
    for (const at::Tensor& rows : lane.terms) {
      rows.narrow(1, marks, lane.length - marks).fill_(1);
      for (std::size_t k = 0; k < lane.parameters.size(); ++k) {
        const std::size_t i = lane.parameters[k];
        if (taken_[i]) continue;
        const Slot& slot = parameters_[i].gradient_slot;
        rows.narrow(1, slot.offset, slot.length).zero_();
        rows.narrow(1, marks + static_cast<std::int64_t>(k), 1).zero_();
      }
    }
    std::vector<at::Tensor> flat;
    for (const at::Tensor& rows : lane.terms) flat.push_back(rows.view(-1));
    if (!is_alone()) {
      std::uint64_t bytes = 0;
      for (const at::Tensor& t : flat) bytes += t.nbytes();
      state_.bill().charge_own("fully_shard", name_, shard_text_, "P->S", bytes, /*backward=*/true);
    }
    reducing_.push_back(
        reduce_scatter(reduced_, flat, 0, Placement::partial(Reduction::sum), {},
                       Call{.tensor = name_, .op = "fully_shard", .module = module_path()}));
    lane.terms.clear();
  }
  taken_.assign(parameters_.size(), false);
  arrived_.assign(parameters_.size(), false);
}

bool ShardGroup::finish_reduction() {
  const at::NoGradGuard no_grad;
  const BelowAutograd below;
  bool any = false;
  for (std::size_t l = 0; l < reducing_.size(); ++l) {
    const Lane& lane = lanes_[l];
    std::vector<at::Tensor> reduced = reducing_[l].wait();
    if (replicate_) {
      std::uint64_t bytes = 0;
      for (const at::Tensor& t : reduced) bytes += t.nbytes();
      state_.bill().charge_own("fully_shard", name_, replicate_text_, "P->R", bytes,
                               /*backward=*/true);
      reduced = all_reduce(*replicate_, reduced, Placement::partial(Reduction::sum),
                           Call{.tensor = name_, .op = "fully_shard", .module = module_path()})
                    .wait();
    }
    if (reduced.empty()) continue;
    const auto count = static_cast<std::int64_t>(lane.parameters.size());
    at::Tensor marks = reduced[0].narrow(0, lane.length - count, count);
    marks = world_.simulated() ? at::ones({count}, at::kDouble) : marks.to(at::kCPU, at::kDouble);
    for (std::int64_t k = 0; k < count; ++k) {
      if (marks.const_data_ptr<double>()[k] == 0) continue;
      any = true;
      set_gradient(parameters_[lane.parameters[static_cast<std::size_t>(k)]], reduced);
    }
  }
  reducing_.clear();
  return any;
}

void ShardGroup::set_gradient(const Stored& p, const std::vector<at::Tensor>& reduced) {
  at::Tensor parameter = p.lock();
  if (!parameter.defined()) return;
  Pieces pieces;
  for (std::size_t m = 0; m < here_.size(); ++m) {
    at::Tensor piece = part_of(reduced[m], p.gradient_slot.offset, p.stored_sizes[m]);
    if (piece.scalar_type() != p.stored->dtype) piece = piece.to(p.stored->dtype);
    if (options_.offload && !world_.simulated()) piece = piece.to(at::kCPU);
    pieces.push_back(std::move(piece));
  }
  at::Tensor gradient = make(p.stored, std::move(pieces));
  if (parameter.grad().defined()) {
    parameter.mutable_grad().add_(gradient);
  } else {
    parameter.mutable_grad() = std::move(gradient);
  }
}

}  // namespace intarsia
