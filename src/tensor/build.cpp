#include "intarsia/build.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/decide.h"
#include "tensor/deferred.h"
#include "tensor/dispatch.h"
#include "tensor/random.h"
#include "tensor/state.h"

namespace intarsia {
namespace {

using Stack = torch::jit::Stack;
constexpr c10::DispatchKey kScope = c10::DispatchKey::DeferredInit;

struct Current {
  World* world = nullptr;
  Mesh mesh;
};
thread_local std::optional<Current> t_scope;

constexpr std::array<std::string_view, 15> kInitialisers{
    "aten::fill_",   "aten::zero_",        "aten::uniform_",   "aten::normal_", "aten::bernoulli_",
    "aten::random_", "aten::exponential_", "aten::geometric_", "aten::cauchy_", "aten::log_normal_",
    "aten::mul_",    "aten::add_",         "aten::div_",       "aten::sub_",    "aten::clamp_"};

/// Those that make something of the values that were there before.
constexpr std::array<std::string_view, 5> kChangers{"aten::mul_", "aten::add_", "aten::div_",
                                                    "aten::sub_", "aten::clamp_"};

bool is_deferred(const at::Tensor& t) {
  return is_ours(t) && impl_of(t).extra() && impl_of(t).extra()->recipe;
}

at::Tensor deferred(const Shape& sizes, at::ScalarType dtype) {
  const Spec spec(Layout::replicated(t_scope->mesh), sizes, dtype);
  World& world = *t_scope->world;
  at::Tensor out = make_tensor(world.shared_from_this(), TensorState::of(world), spec, Pieces());
  impl_of(out).need_extra().recipe = std::make_shared<Recipe>();
  return out;
}

at::ScalarType dtype_argument(const c10::FunctionSchema& schema, const Stack& stack,
                              std::size_t base, at::ScalarType otherwise) {
  const auto at = argument_index(schema, "dtype");
  return at && !stack[base + *at].isNone() ? stack[base + *at].toScalarType() : otherwise;
}

/// Writes down an op in place that only initialises its tensor. False when it is something else.
bool record(const c10::OperatorHandle& op, Stack& stack, std::size_t base) {
  const auto& schema = op.schema();
  const bool known =
      std::find(kInitialisers.begin(), kInitialisers.end(), schema.name()) != kInitialisers.end();
  if (!known || !stack[base].isTensor() || !is_deferred(stack[base].toTensor())) return false;
  for (std::size_t i = base + 1; i < stack.size(); ++i) {
    if (!stack[i].isTensor()) continue;
    // A number that ATen wrapped is no tensor of the model.
    if (is_ours(stack[i].toTensor()) || stack[i].toTensor().dim() > 0) return false;
  }
  const at::Tensor self = stack[base].toTensor();
  DistributedImpl& impl = impl_of(self);
  Recipe::Step step{op, Stack(stack.begin() + static_cast<std::ptrdiff_t>(base) + 1, stack.end()),
                    std::nullopt};
  std::string_view base_name = schema.name();
  base_name.remove_prefix(6);
  base_name.remove_suffix(1);
  if (is_random(base_name, true)) {
    const c10::IValue* generator = nullptr;
    for (const c10::IValue& v : step.arguments) {
      if (v.isGenerator()) generator = &v;
    }
    step.key = next_key(impl.state(), generator);
  }
  impl.extra()->recipe->steps.push_back(std::move(step));
  torch::jit::drop(stack, stack.size() - base);
  stack.emplace_back(self);
  return true;
}

/// Factories whose result need not exist yet. False for others.
bool make_deferred(const c10::OperatorHandle& op, Stack& stack, std::size_t base) {
  const auto& schema = op.schema();
  const std::string& name = schema.name();
  const bool zeros = name == "aten::zeros";
  const bool ones = name == "aten::ones";
  const bool full = name == "aten::full";
  if (name != "aten::empty" && !zeros && !ones && !full) return false;
  if (!stack[base].isIntList() || schema.overload_name() == "names") return false;
  const Shape sizes = to_shape(at::IntArrayRef(stack[base].toIntVector()));
  at::ScalarType otherwise = c10::typeMetaToScalarType(c10::get_default_dtype());
  if (full && stack[base + 1].isInt()) otherwise = at::kLong;
  const at::Scalar value = full ? stack[base + 1].toScalar() : at::Scalar(ones ? 1 : 0);
  const at::Tensor out = deferred(sizes, dtype_argument(schema, stack, base, otherwise));
  if (name != "aten::empty") {
    static const auto fill =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::fill_", "Scalar");
    impl_of(out).extra()->recipe->steps.push_back({fill, {value}, std::nullopt});
  }
  torch::jit::drop(stack, stack.size() - base);
  stack.emplace_back(out);
  return true;
}

void run_in_scope(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard outside(kScope);
  const std::size_t base = stack->size() - op.schema().arguments().size();
  const bool takes_tensors = std::any_of(
      stack->begin() + static_cast<std::ptrdiff_t>(base), stack->end(), [](const c10::IValue& v) {
        return v.isTensor() || v.isTensorList() || v.isOptionalTensorList();
      });
  if (!t_scope) {
    op.callBoxed(stack);
    return;
  }
  if (takes_tensors) {
    if (!record(op, *stack, base)) op.callBoxed(stack);
    return;
  }
  if (make_deferred(op, *stack, base)) return;
  op.callBoxed(stack);
  // What ATen made from numbers alone is the same on all ranks.
  for (std::size_t i = base; i < stack->size(); ++i) {
    c10::IValue& v = (*stack)[i];
    if (v.isTensor() && v.toTensor().defined() && !is_ours(v.toTensor())) {
      v = distribute(v.toTensor(), Layout::replicated(t_scope->mesh), *t_scope->world);
    }
  }
}

}  // namespace

void materialise(DistributedImpl& impl, const Layout& layout) {
  const std::shared_ptr<Recipe> recipe = impl.extra()->recipe;
  const BelowAutograd below;
  const c10::impl::ExcludeDispatchKeyGuard outside(kScope);
  const Spec spec = impl.spec().with(layout);
  Pieces pieces;
  for (const Coordinate& at : hosted_coordinates(impl.world(), layout.mesh())) {
    const Shape sizes = local_shape(layout, spec->sizes, at);
    pieces.push_back(at::empty(to_ref(sizes),
                               at::TensorOptions(impl.world().piece_device()).dtype(spec->dtype)));
  }
  impl.replace(spec, std::move(pieces));
  const at::Tensor self(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(&impl));
  for (const Recipe::Step& step : recipe->steps) {
    std::optional<KeyScope> key;
    if (step.key) key.emplace(*step.key);
    Stack stack{self};
    stack.insert(stack.end(), step.arguments.begin(), step.arguments.end());
    step.op.callBoxed(&stack);
  }
}

void register_deferred() {
  static auto* const kept =
      new c10::RegistrationHandleRAII(c10::Dispatcher::singleton().registerFallback(
          kScope, c10::KernelFunction::makeFromBoxedFunction<&run_in_scope>(), "Intarsia"));
  (void)kept;
}

bool matches(std::string_view name, std::string_view pattern) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    for (std::size_t i = 0; i <= name.size(); ++i) {
      if (matches(name.substr(i), pattern.substr(1))) return true;
    }
    return false;
  }
  return !name.empty() && name[0] == pattern[0] && matches(name.substr(1), pattern.substr(1));
}

BuildScope::BuildScope(World& world, const Mesh& mesh) : world_(world), mesh_(mesh) {
  register_kernels();
  if (t_scope) fail<ValueError>("build", "build scopes do not nest");
  t_scope = Current{&world, mesh};
  c10::impl::tls_set_dispatch_key_included(kScope, true);
}

BuildScope::~BuildScope() { leave(); }

void BuildScope::leave() {
  if (!std::exchange(active_, false)) return;
  c10::impl::tls_set_dispatch_key_included(kScope, false);
  t_scope.reset();
}

namespace {

/// Whether nothing ever set its values.
bool is_raw(const at::Tensor& t) {
  if (!t.defined() || t.numel() == 0 || !is_deferred(t)) return false;
  const auto& steps = impl_of(t).extra()->recipe->steps;
  return std::all_of(steps.begin(), steps.end(), [](const Recipe::Step& step) {
    return std::find(kChangers.begin(), kChangers.end(), step.op.schema().name()) !=
           kChangers.end();
  });
}

void check_values(const NamedTensors& tensors) {
  std::vector<std::string> raw;
  for (const auto& [name, tensor] : tensors) {
    if (is_raw(tensor)) raw.push_back(concat("'", name, "'"));
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
                       ": it was not made inside; make the whole module in the function that build "
                       "is given");
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
