#include "tensor/move/write_through.h"

#include "base/text.h"
#include "intarsia/error.h"
#include "tensor/move/state.h"

namespace intarsia {

std::shared_ptr<Extra::MovedCopy> moved_copy_of(DistributedImpl& base, const at::Tensor& moved) {
  // What the snapshot shall share.
  if (base.spec()->partial) base.memory();
  const std::uint32_t version = base.is_inference() ? base.inference_writes()->load()
                                                    : base.version_counter().current_version();
  return std::make_shared<Extra::MovedCopy>(Extra::MovedCopy{base.snapshot(), moved, version});
}

void write_through(DistributedImpl& view, std::string_view op) {
  if (!view.extra() || !view.extra()->moved_copy) return;
  Extra::MovedCopy& copy = *view.extra()->moved_copy;
  DistributedImpl& moved = impl_of(copy.moved);
  moved.refresh();
  if (overlaps(*copy.base->spec())) {
    if (view.numel() == 0) return;
    fail<ValueError>(op, kOverlaps, ": ", copy.base->spec(), "; ", kOverlapsWayOut);
  }
  if (copy.base->spec()->norms) view.state().settle(*copy.base, {.op = op});
  const PlanPointer plan = view.state().plan(moved.spec(), copy.base->spec()->layout);
  TORCH_INTERNAL_ASSERT(plan);
  const Pieces home = view.state().move(moved.spec(), moved.pieces(), plan, {.op = op});
  for (std::size_t m = 0; m < home.size(); ++m) copy.base->pieces()[m].copy_(home[m]);
  view.state().note_write(*copy.base);
  // ATen counts this write once we return.
  copy.version = copy.base->is_inference() ? copy.base->inference_writes()->load()
                                           : copy.base->version_counter().current_version() + 1;
  write_through(*copy.base, op);
}

}  // namespace intarsia
