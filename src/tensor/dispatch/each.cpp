// Ops on lists of tensors: foreach and fused optimizer steps, tensor by tensor.
#include "rules/op_traits.h"
#include "tensor/dispatch/decide.h"

namespace intarsia {
namespace {

bool is_elementwise(std::string_view base) {
  if (base.starts_with("_fused_")) return true;
  base.remove_prefix(std::string_view("_foreach_").size());
  return has_trait(base, kElementwiseList);
}

/// The list that others follow: the one that is written, else the first.
std::uint32_t leading_list(const Frame& f) {
  for (const Frame::Tensor& t : f.tensors) {
    if (t.written) return t.argument;
  }
  return f.tensors.empty() ? 0 : f.tensors[0].argument;
}

}  // namespace

void decide_each(const Frame& f, Decision& d) {
  const std::uint32_t lead = leading_list(f);
  std::vector<const Spec*> leaders;
  for (std::size_t i = 0; i < f.tensors.size(); ++i) {
    if (f.tensors[i].argument == lead) leaders.push_back(&d.in[i]);
  }
  const Layout replicated = Layout::replicated(f.mesh());
  d.layouts.assign(f.tensors.size(), replicated);
  bool fits = is_elementwise(f.info.base_name);
  std::size_t place = 0;
  for (std::size_t i = 0; i < f.tensors.size(); ++i) {
    place = i > 0 && f.tensors[i].argument == f.tensors[i - 1].argument ? place + 1 : 0;
    if (!d.in[i]) continue;
    const Spec* leader = place < leaders.size() ? leaders[place] : nullptr;
    const bool one = d.in[i]->numel == 1 && d.in[i]->sizes.empty();
    if (leader == nullptr || !*leader || (*leader)->partial ||
        (!one && d.in[i]->sizes != (*leader)->sizes)) {
      fits = false;
      break;
    }
    // A plain list beside a distributed one is laid out like it; what leads must be distributed.
    if (f.tensors[i].impl == nullptr && f.tensors[i].argument == lead) fits = false;
    if (!one) d.layouts[i] = (*leader)->layout;
  }
  if (!fits) {
    const bool has_composite =
        f.info.op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
    if (!has_composite) {
      f.refuse("the lists do not go together tensor by tensor, or hold partial tensors",
               "give each list tensors of the same sizes and layouts, or use the op for single "
               "tensors (foreach=False, fused=False)");
    }
    d.layouts.assign(d.in.size(), replicated);
    for (std::size_t i = 0; i < d.in.size(); ++i) {
      if (d.in[i]) d.layouts[i] = d.in[i]->layout;
    }
    d.strategy = Strategy::decompose;
    return;
  }
  const auto& returns = f.info.op.schema().returns();
  if (!returns.empty()) {
    Result result{Result::Kind::list, {}, 0};
    for (const Spec* s : leaders) {
      result.specs.push_back(s->fresh((*s)->layout));
    }
    d.results.push_back(std::move(result));
    d.out_layouts.push_back(replicated);
  }
}

}  // namespace intarsia
