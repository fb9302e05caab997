#include "tensor/local/kernel_log.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "rules/op_traits.h"
#include "tensor/core/arguments.h"
#include "tensor/core/impl.h"
#include "world/session/step_log.h"

namespace intarsia {
namespace {

using Values = std::span<const c10::IValue>;

template <class Look>
void for_each_defined(Values values, const Look& look) {
  for (const c10::IValue& value : values) {
    for_each_tensor(value, [&](const at::Tensor& t) {
      if (t.defined()) look(t);
    });
  }
}

bool has_ours(Values values) {
  bool found = false;
  for_each_defined(values, [&](const at::Tensor& t) { found |= is_ours(t); });
  return found;
}

double count(const at::Tensor& t) { return static_cast<double>(t.numel()); }

double length(const at::Tensor& t, std::int64_t d) { return static_cast<double>(t.size(d)); }

/// Products: which argument's last dimension is summed over.
struct ProductRow {
  std::string_view name;
  std::size_t left;
  bool batched;
};
constexpr ProductRow kProducts[] = {
    {"mm", 0, false},     {"addmm", 1, false},  {"bmm", 0, true},
    {"baddbmm", 1, true}, {"mv", 0, false},     {"addmv", 1, false},
    {"dot", 0, false},    {"linear", 0, false}, {"_addmm_activation", 1, false},
};

/// Makes memory, or says what is known.
constexpr std::string_view kNothing[] = {
    "empty",  "empty_like", "empty_strided", "new_empty", "new_empty_strided",
    "detach", "lift",       "resize",        "set",       "record_stream",
};

/// Reads as much as it gives, whatever the length of what it reads from.
constexpr std::string_view kPicks[] = {"embedding", "index_select", "gather", "index"};

template <class Rows>
bool is_in(const Rows& rows, std::string_view name) {
  return std::ranges::find(rows, name) != std::end(rows);
}

void add_convolution(StepEvent& e, const at::Tensor& out, const at::Tensor& weight, double passes) {
  e.products = passes * 2 * count(out) * count(weight) / std::max(1.0, length(weight, 0));
}

/// Of attention, forward and backward: what its queries and keys cost each other.
void add_attention(StepEvent& e, const c10::FunctionSchema& schema, Values inputs) {
  constexpr double kPasses = 2;          // of products, in the forward
  constexpr double kBackwardPasses = 5;  // and in the backward
  constexpr double kKeysAtATime = 512;   // which kernels skip where none of them is seen
  const auto argument = [&](std::string_view name) -> const c10::IValue* {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (schema.arguments()[i].name() == name) return &inputs[i];
    }
    return nullptr;
  };
  const c10::IValue* query = argument("query");
  const c10::IValue* key = argument("key");
  if (query == nullptr || key == nullptr) return;
  const c10::IValue* causal = argument("is_causal");
  const bool half = causal != nullptr && causal->isBool() && causal->toBool();
  const bool backward = e.name.find("backward") != std::string::npos;
  const double keys = length(key->toTensor(), -2);
  const double seen = half ? std::min(keys, (keys + kKeysAtATime) / 2) : keys;
  e.attention = 2 * (backward ? kBackwardPasses : kPasses) * count(query->toTensor()) * seen;
  e.head_size = length(query->toTensor(), -1);
}

void add_products(StepEvent& e, const c10::FunctionSchema& schema, Values inputs, Values outputs) {
  if (e.name.starts_with("_scaled_dot_product")) {
    add_attention(e, schema, inputs);
  } else if (e.name == "convolution") {
    add_convolution(e, outputs[0].toTensor(), inputs[1].toTensor(), 1);
  } else if (e.name == "convolution_backward") {
    add_convolution(e, inputs[0].toTensor(), inputs[2].toTensor(), 2);
  }
  for (const ProductRow& row : kProducts) {
    if (row.name != e.name) continue;
    const at::Tensor& left = inputs[row.left].toTensor();
    const at::Tensor& out = outputs[0].toTensor();
    e.count = row.batched ? std::max(1.0, length(out, 0)) : 1;
    e.products = 2 * count(out) * (left.dim() == 0 ? 1 : length(left, -1)) / e.count;
  }
}

/// Whether the results are other views of what was given.
bool is_view(Values inputs, Values outputs) {
  bool shares = false;
  for_each_defined(outputs, [&](const at::Tensor& out) {
    for_each_defined(inputs, [&](const at::Tensor& in) {
      shares |= in.has_storage() && out.has_storage() && out.is_alias_of(in);
    });
  });
  return shares;
}

// ---- what torch runs ----------------------------------------------------------------------------

/// Whether an op is expressed by others, which are noted in its place.
bool is_composed(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

/// How deep this thread is in ops that are noted.
thread_local int depth = 0;

struct Observed final : at::ObserverContext {
  std::optional<c10::OperatorHandle> op = {};
  std::vector<c10::IValue> inputs = {};
};

std::unique_ptr<at::ObserverContext> begin_op(const at::RecordFunction& fn) {
  StepLog* log = StepLog::current();
  if (log == nullptr) return nullptr;
  const auto name = fn.operator_name();
  const auto op = name ? c10::Dispatcher::singleton().findSchema(*name) : std::nullopt;
  if (!op || is_composed(*op)) return nullptr;
  if (has_ours({fn.inputs().data(), fn.inputs().size()})) {
    log->kernel({.name = std::string(base_of(op->schema().name())), .is_call = true});
    return nullptr;
  }
  auto observed = std::make_unique<Observed>();
  if (depth++ == 0) {
    observed->op = op;
    observed->inputs.assign(fn.inputs().begin(), fn.inputs().end());
  }
  return observed;
}

void end_op(const at::RecordFunction& fn, at::ObserverContext* context) {
  auto* observed = static_cast<Observed*>(context);
  if (observed == nullptr) return;
  --depth;
  if (!observed->op) return;
  const bool has_failed = fn.outputs().empty() && !observed->op->schema().returns().empty();
  if (!has_failed) note_kernel(*observed->op, observed->inputs, fn.outputs());
}

}  // namespace

StepEvent kernel_event(const c10::FunctionSchema& schema, Values inputs, Values outputs) {
  StepEvent e{.name = std::string(base_of(schema.name()))};
  if (is_in(kNothing, e.name) || (!schema.is_mutable() && is_view(inputs, outputs))) return e;
  const auto add = [&](const at::Tensor& t) {
    e.elements = std::max(e.elements, count(t));
    e.bytes += count(t) * static_cast<double>(t.itemsize());
  };
  for_each_defined(outputs, add);
  if (is_in(kPicks, e.name)) {
    e.bytes *= 2;
  } else {
    for_each_defined(inputs, add);
  }
  add_products(e, schema, inputs, outputs);
  e.in_place = schema.is_mutable();
  return e;
}

void note_kernel(const c10::OperatorHandle& op, Values inputs, Values outputs) {
  StepLog* log = StepLog::current();
  if (log == nullptr) return;
  StepEvent event = kernel_event(op.schema(), inputs, outputs);
  if (event.bytes > 0) log->kernel(std::move(event));
}

KernelObserver::KernelObserver()
    : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(begin_op, end_op)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}))) {}

KernelObserver::~KernelObserver() { at::removeCallback(handle_); }

}  // namespace intarsia
