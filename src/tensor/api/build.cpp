#include "intarsia/build.h"

#include <ATen/ATen.h>

#include <utility>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/pattern.h"
#include "intarsia/tensor.h"
#include "tensor/dispatch/deferred.h"
#include "tensor/dispatch/dispatch.h"

namespace intarsia {

BuildScope::BuildScope(World& world, const Mesh& mesh) : world_(world), mesh_(mesh) {
  register_kernels();
  if (defers()) fail<ValueError>("build", "build scopes do not nest");
  begin_deferring(world, mesh);
}

BuildScope::~BuildScope() { leave(); }

void BuildScope::leave() {
  if (std::exchange(active_, false)) end_deferring();
}

namespace {

void check_values(const NamedTensors& tensors) {
  std::vector<std::string> raw;
  for (const auto& [name, tensor] : tensors) {
    if (is_unset(tensor)) raw.push_back(concat("'", name, "'"));
  }
  if (raw.empty()) return;
  fail<ValueError>("build", "nothing sets the values of ", join(raw, ", "),
                   ", which would be whatever the memory held; set them in the module's "
                   "constructor, with torch::zeros or torch::nn::init for example");
}

}  // namespace

void BuildScope::finish(const NamedTensors& tensors, const LayoutPatterns& patterns) {
  leave();
  check_values(tensors);
  std::vector<bool> used(patterns.size(), false);
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined()) continue;
    if (!is_ours(tensor)) {
      fail<ValueError>("build", "'", name, "' is ", describe(tensor),
                       ": it was not made inside; make all of the module in the function that "
                       "build is given");
    }
    Layout layout = Layout::replicated(mesh_);
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      if (!matches(name, patterns[i].first)) continue;
      used[i] = true;
      layout = Layout::parse(patterns[i].second, mesh_,
                             {.dims = static_cast<std::size_t>(tensor.dim())});
      break;
    }
    check_partial("build", tensor.scalar_type(), layout);
    DistributedImpl& impl = impl_of(tensor);
    if (is_deferred(tensor)) {
      materialise(impl, layout);
    } else if (impl.spec()->layout != layout) {
      const at::Tensor moved = redistribute(tensor.detach(), layout);
      impl.replace(impl_of(moved).spec(), impl_of(moved).pieces());
    }
  }
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (used[i]) continue;
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors) names.push_back(name);
    fail<ValueError>("build", "pattern '", patterns[i].first,
                     "' decides about none of: ", join(names, ", "));
  }
}

}  // namespace intarsia
