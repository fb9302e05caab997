#include "tensor/call/frame.h"

#include <torch/csrc/autograd/function.h>

#include <bit>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"

namespace intarsia {
namespace {

// Words begin with what they stand for, so that no two kinds of call have the same words. A spec is
// a pointer, whose lowest bits are 0.
enum Word : std::uint64_t {
  kPlain = 1,
  kNone = 2,
  kList = 3,
  kInt = 4,
  kBool = 5,
  kTyped = 7,
  kInts = 9,
  kText = 10,
  kOther = 11,
  kPartial = 12,
};

constexpr std::uint64_t word(Word kind, std::uint64_t value = 0) {
  return (value << 4 | static_cast<std::uint64_t>(kind)) << 1 | 1;
}

}  // namespace

Frame::Frame(const OpInfo& op, torch::jit::Stack& s)
    : info(op), stack(s), base(s.size() - op.arguments.size()) {
  key.push_back(reinterpret_cast<std::uintptr_t>(&info));
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    const c10::IValue& value = stack[base + i];
    switch (info.arguments[i].kind) {
      case ArgumentKind::tensor:
        add_tensor(value.isTensor() ? &value.toTensor() : nullptr, i);
        break;
      case ArgumentKind::tensor_list:
        if (value.isNone()) {
          key.push_back(word(kNone));
          break;
        }
        key.push_back(word(kList, value.toListRef().size()));
        for (const c10::IValue& element : value.toListRef()) {
          add_tensor(element.isTensor() ? &element.toTensor() : nullptr, i);
        }
        break;
      case ArgumentKind::fixed:
      case ArgumentKind::typed:
        add_value(value, info.arguments[i].kind);
        break;
    }
  }
  const c10::IValue* training = info.hidden_writes ? argument("training") : nullptr;
  if (training != nullptr && !training->toBool()) {
    for (Tensor& t : tensors) t.written &= t.is_out;
  }
}

void Frame::add_tensor(const at::Tensor* tensor, std::size_t argument) {
  const OpInfo::Argument& arg = info.arguments[argument];
  Tensor entry{tensor, nullptr, static_cast<std::uint32_t>(argument), arg.written, arg.is_out};
  if (tensor == nullptr || !tensor->defined()) {
    key.push_back(word(kNone));
  } else if (is_ours(*tensor)) {
    entry.impl = &impl_of(*tensor);
    if (entry.impl->spec()->norms) entry.impl->refresh();
    key.push_back(reinterpret_cast<std::uintptr_t>(entry.impl->spec().id()));
    if (lead == nullptr) lead = entry.impl;
    if (entry.impl->spec()->partial) {
      // What the choice of a layout for partial tensors depends on besides.
      in_backward = torch::autograd::get_current_node() != nullptr;
      entry.reduced = entry.impl->reduced_layout();
      key.push_back(word(kPartial, in_backward ? 1 : 0));
      if (entry.reduced) key.push_back(reinterpret_cast<std::uintptr_t>(entry.reduced->id()));
    }
  } else {
    const c10::TensorImpl& plain = *tensor->unsafeGetTensorImpl();
    const bool dense = plain.is_contiguous();
    key.push_back(word(kPlain, static_cast<std::uint64_t>(tensor->scalar_type()) |
                                   static_cast<std::uint64_t>(plain.dim()) << 8 |
                                   static_cast<std::uint64_t>(plain.is_wrapped_number()) << 16 |
                                   static_cast<std::uint64_t>(dense) << 17));
    for (const std::int64_t size : plain.sizes()) key.push_back(static_cast<std::uint64_t>(size));
    if (!dense) {
      for (const std::int64_t step : plain.strides())
        key.push_back(static_cast<std::uint64_t>(step));
    }
  }
  tensors.push_back(entry);
}

void Frame::add_value(const c10::IValue& value, ArgumentKind kind) {
  if (value.isNone()) {
    key.push_back(word(kNone));
  } else if (kind == ArgumentKind::typed) {
    const std::uint64_t type = value.isInt()             ? 1
                               : value.isDouble()        ? 2
                               : value.isBool()          ? 3
                               : value.isComplexDouble() ? 4
                                                         : 5;
    key.push_back(word(kTyped, type));
  } else if (value.isList()) {
    const auto values = value.toListRef();
    key.push_back(word(kInts, values.size()));
    for (const c10::IValue& v : values) add_element(v);
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    key.push_back(word(kText, text.size()));
    for (const char c : text) key.push_back(static_cast<std::uint64_t>(c));
  } else if (value.isDevice()) {
    const c10::Device device = value.toDevice();
    key.push_back(word(kOther, static_cast<std::uint64_t>(device.type()) << 16 |
                                   static_cast<std::uint8_t>(device.index())));
  } else {
    key.push_back(word(kInt));
    add_element(value);
  }
}

void Frame::add_element(const c10::IValue& value) {
  if (value.isInt()) {
    key.push_back(static_cast<std::uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    key.push_back(word(kBool, value.toBool() ? 1 : 0));
  } else if (value.isDouble()) {
    key.push_back(std::bit_cast<std::uint64_t>(value.toDouble()));
  } else {
    key.push_back(word(kOther));
  }
}

std::size_t Frame::place_of(std::string_view name) const {
  const auto at = argument_index(info.op.schema(), name);
  TORCH_INTERNAL_ASSERT(at, info.name, " has no argument ", name);
  return *at;
}

const c10::IValue* Frame::argument(std::string_view name) const {
  const auto at = argument_index(info.op.schema(), name);
  return at ? &stack[base + *at] : nullptr;
}

void Frame::finish(torch::jit::Stack results) {
  torch::jit::drop(stack, info.arguments.size());
  for (c10::IValue& r : results) stack.push_back(std::move(r));
}

void Frame::finish(at::Tensor result) {
  torch::jit::drop(stack, info.arguments.size());
  stack.emplace_back(std::move(result));
}

std::string Frame::operands_text() const {
  std::vector<std::string> parts;
  for (const Tensor& t : tensors) {
    if (!t.given()) continue;
    if (parts.size() == 8) {
      parts.push_back(concat("... (", tensors.size(), " tensors)"));
      break;
    }
    parts.push_back(describe(*t.tensor));
  }
  return join(parts, "; ");
}

void Frame::refuse(std::string_view why, std::string_view way_out) const {
  std::string at;
  if (lead != nullptr && lead->world().hosted().size() == 1)
    at = concat(" (rank ", lead->world().rank(), ")");
  fail<ValueError>(info.name, why, ": ", operands_text(), "; ", way_out, at);
}

void Frame::check_writes() const {
  for (const Tensor& t : tensors) {
    if (!t.written || t.impl == nullptr) continue;
    const SpecData& spec = *t.impl->spec();
    if (spec.numel > 0 && overlaps(spec)) refuse(kOverlaps, kOverlapsWayOut);
  }
}

}  // namespace intarsia
