#include "prove/case.h"

#include <utility>

#include "base/text.h"
#include "intarsia/error.h"
#include "tensor/core/arguments.h"

namespace intarsia {
namespace {

using torch::jit::Stack;
using Tensors = std::vector<at::Tensor>;

constexpr std::string_view kWith = " with ";
constexpr std::string_view kOn = " on ";
constexpr std::string_view kInPlace = " in place";
constexpr std::string_view kOut = " into out=";

}  // namespace

std::string Case::to_string() const {
  std::vector<std::string> texts;
  for (const Layout& l : layouts) texts.push_back(l.placements_text());
  return concat(sample.to_string(),
                variant == Variant::in_place ? kInPlace
                : variant == Variant::out    ? kOut
                                             : std::string_view(),
                kWith, join(texts, "; "), kOn, mesh());
}

Case Case::parse(std::string_view text) {
  const auto with = text.rfind(kWith);
  const auto on = text.rfind(kOn);
  if (with == std::string_view::npos || on == std::string_view::npos || on < with) {
    fail<ValueError>(
        "prove_case", "'", text,
        "' is no case, such as `aten::mm(f64[2, 1], f64[1, 2]) with S(0); R on [a=2]`");
  }
  std::string_view call = text.substr(0, with);
  Variant variant = Variant::functional;
  for (const auto& [suffix, what] :
       {std::pair(kInPlace, Variant::in_place), std::pair(kOut, Variant::out)}) {
    if (!call.ends_with(suffix)) continue;
    call.remove_suffix(suffix.size());
    variant = what;
  }
  Case c{Sample::parse(call), {}, variant};
  const Mesh mesh = Mesh::parse(text.substr(on + kOn.size()));
  std::string_view rest = text.substr(with + kWith.size(), on - with - kWith.size());
  while (true) {
    const auto semicolon = rest.find(';');
    c.layouts.push_back(Layout::parse(rest.substr(0, semicolon), mesh));
    if (semicolon == std::string_view::npos) break;
    rest.remove_prefix(semicolon + 1);
  }
  if (c.layouts.size() != c.sample.tensors().size()) {
    fail<ValueError>("prove_case", "'", text, "' has ", c.layouts.size(), " layouts for ",
                     c.sample.tensors().size(), " tensors");
  }
  return c;
}

std::vector<at::Tensor> tensors_in(const Stack& stack) {
  Tensors out;
  for (const c10::IValue& v : stack) {
    for_each_tensor(v, [&](const at::Tensor& t) { out.push_back(t); });
  }
  return out;
}

Stack with_tensors(const Stack& stack, const std::vector<at::Tensor>& tensors) {
  std::size_t next = 0;
  const auto with = [&](const c10::IValue& v) {
    return v.isTensor() ? c10::IValue(tensors[next++]) : v;
  };
  Stack out;
  for (const c10::IValue& v : stack) {
    out.push_back(is_tensor_list(v) ? replaced_list(v, with) : with(v));
  }
  return out;
}

std::optional<c10::OperatorHandle> variant_of(const c10::OperatorHandle& op, Variant variant) {
  const c10::FunctionSchema& schema = op.schema();
  auto& dispatcher = c10::Dispatcher::singleton();
  const std::size_t n = schema.arguments().size();
  const auto same_arguments = [&](const c10::FunctionSchema& other) {
    for (std::size_t i = 0; i < n; ++i) {
      if (other.arguments()[i].name() != schema.arguments()[i].name()) return false;
    }
    return true;
  };
  // Views in place take another layout by design.
  if (!schema.arguments().empty() && schema.arguments()[0].alias_info() != nullptr) {
    return std::nullopt;
  }
  if (variant == Variant::in_place) {
    const auto found = dispatcher.findSchema({schema.name() + "_", schema.overload_name()});
    if (!found || found->schema().arguments().size() != n || !same_arguments(found->schema())) {
      return std::nullopt;
    }
    return found;
  }
  const std::string& overload = schema.overload_name();
  for (const std::string& name : {overload + "_out", std::string("out"), overload + ".out"}) {
    const auto found = dispatcher.findSchema({schema.name(), name});
    if (!found) continue;
    const auto& other = found->schema();
    const bool adds_outs =
        other.arguments().size() == n + schema.returns().size() && other.arguments()[n].is_out();
    if (adds_outs && same_arguments(other)) return found;
  }
  return std::nullopt;
}

}  // namespace intarsia
