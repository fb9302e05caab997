#include "tensor/dispatch/written.h"

#include <ATen/ATen.h>
#include <ATen/native/Resize.h>

#include "tensor/move/state.h"
#include "tensor/move/write_through.h"

namespace intarsia {

void share_extra(const Frame& f, const at::Tensor& out, const at::Tensor* moved, bool in_list) {
  impl_of(out).track_like(*f.tensors[0].impl);
  if (f.info.base_name == "_unsafe_view") return;
  DistributedImpl& base = *f.tensors[0].impl;
  DistributedImpl& view = impl_of(out);
  if (moved != nullptr) {
    Extra& extra = view.need_extra();
    extra.moved_copy = moved_copy_of(base, *moved);
    if (view.spec()->partial) extra.memory = impl_of(*moved).memory();
    return;
  }
  if (base.is_inference()) view.need_extra().inference_writes = base.inference_writes();
  if (base.spec()->partial) {
    Extra& extra = view.need_extra();
    extra.memory = base.memory();
    if (f.info.returns == 1 && out.defined() && view.spec()->partial && !in_list) {
      extra.view_of = std::make_unique<Extra::ViewOf>(
          Extra::ViewOf{base.snapshot(), f.info.op,
                        torch::jit::Stack(f.arguments().begin() + 1, f.arguments().end())});
    }
  }
  if (!base.extra()) return;
  if (base.extra()->on_use && f.info.returns == 1 && !in_list) {
    view.need_extra().on_use =
        std::make_unique<OnUse>(base.extra()->on_use->then(f.info.op, f.arguments().subspan(1)));
  }
  if (base.extra()->exposed) view.expose();
  if (base.extra()->moved_copy) view.need_extra().moved_copy = base.extra()->moved_copy;
}

void note_writes(const Frame& f) {
  for (const Frame::Tensor& t : f.tensors) {
    if (!t.written || t.impl == nullptr) continue;
    f.state().note_write(*t.impl);
    if (t.impl->extra()) write_through(*t.impl, f.info.name);
    // ATen counts writes to single tensors itself.
    const bool in_list = f.info.arguments[t.argument].kind == ArgumentKind::tensor_list;
    if (in_list && !t.impl->is_inference()) t.impl->bump_version();
  }
}

void write_plain(const Frame::Tensor& t, const at::Tensor& result) {
  if (t.is_out) at::native::resize_output(*t.tensor, result.sizes());
  t.tensor->copy_(result);
}

}  // namespace intarsia
