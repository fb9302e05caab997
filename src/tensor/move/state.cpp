#include "tensor/move/state.h"

#include <ATen/ATen.h>

namespace intarsia {

TensorState::TensorState(World& world) : world_(world) {}

TensorState& TensorState::of(World& world) {
  return static_cast<TensorState&>(
      world.extension([](World& w) -> std::unique_ptr<World::Extension> {
        return std::make_unique<TensorState>(w);
      }));
}

PlanPointer TensorState::plan(const Spec& spec, const Layout& to) {
  return world_.plans().plan(spec->layout, to, spec->sizes,
                             static_cast<std::int64_t>(c10::elementSize(spec->dtype)));
}

Pieces TensorState::move(const Spec& spec, const Pieces& pieces, const PlanPointer& plan,
                         const Reason& asked) {
  const Reason reason = FormulaScope::outermost(asked);
  std::shared_ptr<const Route> way;
  if (plan->collectives() > 0) {
    way = mover_.route(plan);
    bill_.announce(spec, *way, reason);
  }
  const std::string tensor = spec.to_string();
  const Call call{
      .tensor = tensor, .op = reason.op, .module = module_path(), .made_by = reason.made_by};
  StepsSent sent(plan->steps.size());
  Pending moving =
      mover_.start({std::vector<at::Tensor>(pieces.begin(), pieces.end()), plan},
                   {.source_stays = true}, {call, std::source_location::current()}, sent);
  if (way) bill_.charge(spec, *way, reason, sent);
  const auto& moved = moving.wait();
  return in_order(Pieces(moved.begin(), moved.end()), *spec);
}

Pieces TensorState::move(DistributedImpl& tensor, const PlanPointer& plan, const Reason& reason) {
  const bool exposed = tensor.extra() && tensor.extra()->exposed;
  if (plan->collectives() == 0 || exposed)
    return move(tensor.spec(), tensor.pieces(), plan, reason);
  if (tensor.spec()->partial) return reduce_once(tensor, plan, reason);
  const std::uint64_t writes = recent_.writes();
  if (auto known = recent_.find(&tensor, plan->to)) return *std::move(known);
  Pieces moved = move(tensor.spec(), tensor.pieces(), plan, reason);
  recent_.add(&tensor, plan->to, moved, writes);
  tensor.remembered_by = &recent_;
  return moved;
}

Pieces TensorState::reduce_once(DistributedImpl& tensor, const PlanPointer& plan,
                                const Reason& reason) {
  const std::uint32_t now = tensor.memory()->writes;
  Extra::Reduced& known = tensor.extra()->reduced;
  {
    std::unique_lock lock(known.mutex);
    if (known.to && known.writes == now) {
      if (*known.to == plan->to) return known.pieces;
      const PlanPointer from_known = this->plan(tensor.spec().with(*known.to), plan->to);
      if (from_known && from_known->collectives() == 0) {
        const Pieces pieces = known.pieces;
        lock.unlock();
        return move(tensor.spec().with(plan->from), pieces, from_known, reason);
      }
    }
  }
  auto moved = reduced_with_base(tensor, plan, reason);
  if (!moved) moved = move(tensor.spec(), tensor.pieces(), plan, reason);
  const std::scoped_lock lock(known.mutex);
  known.to = plan->to;
  known.pieces = *moved;
  known.writes = now;
  return *moved;
}

/// A view of a partial tensor: the tensor is reduced, and the view taken again. So a matrix and its
/// transpose are reduced once.
std::optional<Pieces> TensorState::reduced_with_base(DistributedImpl& view, const PlanPointer& plan,
                                                     const Reason& reason) {
  const Extra::ViewOf* of = view.extra()->view_of.get();
  if (of == nullptr || plan->to != without_partial(plan->from)) return std::nullopt;
  DistributedImpl& base = *of->base;
  const PlanPointer base_plan = this->plan(base.spec(), without_partial(base.spec()->layout));
  at::Tensor reduced =
      make_tensor(base, base.spec().with(base_plan->to), reduce_once(base, base_plan, reason));
  torch::jit::Stack stack{std::move(reduced)};
  stack.insert(stack.end(), of->arguments.begin(), of->arguments.end());
  of->op.callBoxed(&stack);
  const DistributedImpl& again = impl_of(stack[0].toTensor());
  if (again.spec()->layout != plan->to) return std::nullopt;
  return again.pieces();
}

void TensorState::note_write(DistributedImpl& tensor) {
  recent_.note_write();
  if (!tensor.extra()) return;
  if (tensor.extra()->memory) ++tensor.extra()->memory->writes;
  if (tensor.extra()->inference_writes) ++*tensor.extra()->inference_writes;
  auto& on_use = tensor.extra()->on_use;
  if (!on_use) return;
  if (on_use->cast_after) {
    on_use.reset();
  } else {
    on_use->source->written(on_use->index);
  }
}

void TensorState::settle(DistributedImpl& tensor, const Reason& reason) {
  PartialMemory& memory = *tensor.memory();
  if (!memory.settled) {
    const PlanPointer plan = this->plan(memory.spec, without_partial(memory.spec->layout));
    const Pieces reduced = move(memory.spec, memory.pieces, plan, reason);
    for (std::size_t m = 0; m < reduced.size(); ++m) memory.pieces[m].copy_(reduced[m]);
    ++memory.writes;
    memory.settled = true;
  }
  tensor.refresh();
}

}  // namespace intarsia
