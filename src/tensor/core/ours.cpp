#include "tensor/core/ours.h"

#include <ATen/ATen.h>

#include <sstream>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"

namespace intarsia {

DistributedImpl& ours(std::string_view where, const at::Tensor& t) {
  if (!is_ours(t)) {
    fail<ValueError>(where, "takes a distributed tensor, not ",
                     t.defined() ? describe(t) : std::string("an undefined one"),
                     "; distribute() makes one");
  }
  impl_of(t).refresh();
  return impl_of(t);
}

bool has_layout(const at::Tensor& tensor) { return is_ours(tensor); }

Layout layout_of(const at::Tensor& tensor) { return ours("layout_of", tensor).spec()->layout; }
World& world_of(const at::Tensor& tensor) { return ours("world_of", tensor).world(); }

std::string describe(const at::Tensor& t) {
  if (!t.defined()) return "undefined";
  if (is_ours(t)) {
    const Spec& spec = impl_of(t).spec();
    return concat(spec, " on ", spec->layout.mesh());
  }
  return concat(dtype_text(t.scalar_type()), '[', join(t.sizes(), ", "), "] plain");
}

std::string show(const at::Tensor& t) {
  std::ostringstream out;
  out << describe(t);
  if (!is_ours(t)) {
    out << '\n' << t;
    return out.str();
  }
  DistributedImpl& impl = impl_of(t);
  std::size_t m = 0;
  for (const std::int64_t rank : impl.world().hosted()) {
    const auto at = impl.spec()->layout.mesh().coordinate_of(rank);
    if (!at) continue;
    out << "\nrank " << rank << " holds "
        << boxes(impl.spec()->layout, impl.spec()->sizes, *at).to_string() << '\n'
        << impl.pieces()[m++];
  }
  return out.str();
}

}  // namespace intarsia
