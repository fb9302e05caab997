#include "parallel/sharded/shard_group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>

#include "base/text.h"
#include "tensor/core/in_bytes.h"
#include "tensor/move/state.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

std::vector<Stored> described(const ParameterGroup& group, const GroupSite& site) {
  std::vector<Stored> out;
  for (const ShardedParameter& p : group.parameters) {
    out.push_back(stored_parameter(p, site.options, site.here));
  }
  return out;
}

}  // namespace

ShardGroup::ShardGroup(ParameterGroup group, const FullyShardOptions& options, World& world,
                       const Mesh& mesh)
    : site_{.name = std::move(group.name),
            .options = options,
            .world = world,
            .state = TensorState::of(world),
            .here = hosted_coordinates(world, mesh)},
      shard_(world.along(mesh, options.shard, "gathers")),
      parameters_(described(group, site_)),
      gradients_(site_, parameters_, mesh) {
  place();
  store();
  report_.name = site_.name;
  report_.gather_bytes = static_cast<std::uint64_t>(used_length_);
  report_.reduce_bytes = gradients_.bytes();
}

/// Gives each parameter its places in what is gathered, stored and used.
void ShardGroup::place() {
  for (Stored& p : parameters_) {
    casts_ |= p.used->dtype != p.stored->dtype;
    const auto next = [&](std::int64_t& end, at::ScalarType dtype) {
      const Slot slot{end, p.longest * size_of(dtype)};
      end += aligned(slot.length);
      return slot;
    };
    p.slot = next(length_, p.used->dtype);
    p.stored_slot = next(stored_length_, p.stored->dtype);
    p.place = used_length_;
    std::int64_t most = 0;
    for (const Shape& sizes : p.used_sizes) most = std::max(most, elements(sizes));
    used_length_ += aligned(most * size_of(p.used->dtype));
  }
}

void ShardGroup::store() {
  const at::NoGradGuard no_grad;
  const BelowAutograd below;
  const bool elsewhere = site_.options.offload && !site_.world.simulated();
  const at::Device device = elsewhere ? at::Device(at::kCPU) : site_.world.piece_device();
  for (std::size_t m = 0; m < site_.here.size(); ++m) {
    stored_.push_back(at::zeros({stored_length_}, at::TensorOptions(device).dtype(at::kByte)));
  }
  for (Stored& p : parameters_) {
    const at::Tensor parameter = p.lock();
    DistributedImpl& impl = impl_of(parameter);
    Pieces pieces;
    for (std::size_t m = 0; m < site_.here.size(); ++m) {
      const at::Tensor& old = impl.pieces()[m];
      at::Tensor piece =
          typed(stored_[m], p.stored_slot.offset, p.stored_sizes[m], p.stored->dtype);
      if (impl.spec()->layout == p.stored->layout) {
        piece.copy_(old);
      } else {
        p.take_own(m, shard_.members()[m].index, old, piece);
      }
      pieces.push_back(std::move(piece));
    }
    impl.replace(p.stored, std::move(pieces));
  }
}

bool ShardGroup::trains() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const Stored& p) { return p.gives_gradient(); });
}

/// What this rank sends: its store as it is, or a copy in the dtype of use.
std::vector<at::Tensor> ShardGroup::gather_input() {
  std::vector<at::Tensor> in;
  for (std::size_t m = 0; m < site_.here.size(); ++m) {
    // Someone may have given a parameter other pieces.
    for (const Stored& p : parameters_) {
      const at::Tensor parameter = p.lock();
      if (!parameter.defined()) continue;
      const at::Tensor& piece = impl_of(parameter).pieces()[m];
      if (!piece.is_alias_of(stored_[m])) {
        typed(stored_[m], p.stored_slot.offset, p.stored_sizes[m], p.stored->dtype).copy_(piece);
      }
    }
    const bool elsewhere =
        site_.options.offload && site_.world.piece_device() != stored_[m].device();
    if (!casts_) {
      in.push_back(elsewhere ? stored_[m].to(site_.world.piece_device()) : stored_[m]);
      continue;
    }
    at::Tensor cast = at::empty({length_}, stored_[m].options());
    for (const Stored& p : parameters_) {
      typed(cast, p.slot.offset, p.stored_sizes[m], p.used->dtype)
          .copy_(typed(stored_[m], p.stored_slot.offset, p.stored_sizes[m], p.stored->dtype));
    }
    in.push_back(elsewhere ? cast.to(site_.world.piece_device()) : cast);
  }
  return in;
}

void ShardGroup::gather() {
  const BelowAutograd below;
  ++report_.gathers;
  LedgerTotals sent;
  gathering_.emplace(all_gather(shard_, gather_input(), 0, {}, site_.call(sent)));
  if (!is_alone()) site_.charge(site_.options.shard, "S->R", sent);
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
  for (std::size_t m = 0; m < site_.here.size(); ++m) {
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
      if (!is_alone()) p.take_from_rows(m, rows, p.slot.offset / size, pieces[i][m]);
    }
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    used_.push_back(site_.make(parameters_[i].used, std::move(pieces[i])));
  }
  return waited;
}

void ShardGroup::drop() {
  gathering_.reset();
  used_.clear();
}

}  // namespace intarsia
