#include "tensor/move/relayout.h"

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {

void check_mesh(std::string_view where, const Layout& layout, const Mesh& mesh) {
  if (layout.mesh() != mesh) {
    fail<ValueError>(
        where, "the tensor is on ", mesh, ", not on ", layout.mesh(),
        "; redistribute_between() moves it there, full() and distribute() also with gradients");
  }
}

PlanPointer plan_to(std::string_view where, DistributedImpl& tensor, const Layout& layout) {
  const Spec& spec = tensor.spec();
  check_mesh(where, layout, spec->layout.mesh());
  PlanPointer plan = tensor.state().plan(spec, layout);
  if (!plan) {
    fail<ValueError>(where, "no exact way leads from ", spec->layout, " to ", layout,
                     ": partial values of different kinds, or of a norm, which has no sign; go "
                     "through R");
  }
  return plan;
}

at::Tensor moved_tensor(const DistributedImpl& from, const Layout& layout, Pieces pieces) {
  const Spec spec = from.spec().fresh(layout);
  return make_tensor(from, spec, in_order(apart_from(from.pieces(), std::move(pieces)), *spec));
}

at::Tensor relaid(const at::Tensor& tensor, const Layout& layout, const Reason& reason) {
  DistributedImpl& impl = impl_of(tensor);
  const BelowAutograd below;
  if (impl.spec()->layout == layout) return make_tensor(impl, impl.spec(), impl.pieces());
  const PlanPointer plan = plan_to(reason.op, impl, layout);
  return moved_tensor(impl, layout, impl.state().move(impl.spec(), impl.pieces(), plan, reason));
}

}  // namespace intarsia
