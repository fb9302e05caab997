#include "pipeline/run/boundary.h"

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/core/impl.h"
#include "world/transport/dtype.h"

namespace intarsia::pipeline {
namespace {

constexpr std::string_view kNone = "none";
constexpr std::string_view kPlain = "plain ";
constexpr std::string_view kTrains = "trains ";
constexpr std::string_view kArrow = " -> ";

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

std::string text_of(const std::optional<PassedType>& value) {
  if (!value) return std::string(kNone);
  const std::string_view trains = value->trains ? kTrains : "";
  if (value->is_plain) return concat(trains, kPlain, value->to);
  return concat(trains, value->from, kArrow, value->to);
}

std::optional<PassedType> parse_passed(std::string_view text, const Mesh& from, const Mesh& to) {
  if (text == kNone) return std::nullopt;
  PassedType out;
  out.trains = take(text, kTrains);
  out.is_plain = take(text, kPlain);
  if (out.is_plain) {
    out.from = out.to = TensorType::parse(text, Mesh());
    return out;
  }
  const std::size_t arrow = text.find(kArrow);
  if (arrow == std::string_view::npos) {
    fail<ValueError>("Boundary", "'", text, "' does not say where the tensor goes");
  }
  out.from = TensorType::parse(text.substr(0, arrow), from);
  out.to = TensorType::parse(text.substr(arrow + kArrow.size()), to);
  return out;
}

}  // namespace

std::string Boundary::to_string() const {
  std::string out;
  for (const auto& value : values) out += concat(out.empty() ? "" : "\n", text_of(value));
  return out;
}

at::ScalarType PassedType::dtype() const { return scalar_type(to.dtype); }

Boundary Boundary::parse(std::string_view text, const Mesh& from, const Mesh& to) {
  Boundary out;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    out.values.push_back(parse_passed(text.substr(0, end), from, to));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return out;
}

bool are_alike(const Mesh& a, const Mesh& b) {
  if (a.names() != b.names()) return false;
  for (std::size_t i = 0; i < a.axes(); ++i) {
    if (a.size(i) != b.size(i)) return false;
  }
  return true;
}

Layout carried(const Layout& layout, const Mesh& to) {
  const Mesh& from = layout.mesh();
  const bool alike = are_alike(from, to);
  std::vector<Placement> placements;
  for (const std::string& name : to.names()) {
    Placement p = from.has_axis(name) ? layout.placement(name) : Placement::replicate();
    if (p.is_partial() && !alike) p = Placement::replicate();
    placements.push_back(p);
  }
  LayoutOptions options;
  for (std::size_t dim = 0; dim < layout.least_dims(); ++dim) {
    std::vector<std::string> order;
    for (const std::int8_t axis : layout.axes_of(static_cast<int>(dim))) {
      const std::string& name = from.name(static_cast<std::size_t>(axis));
      if (to.has_axis(name)) order.push_back(name);
    }
    if (order.size() > 1) options.order.emplace_back(static_cast<int>(dim), std::move(order));
  }
  return Layout(to, placements, options);
}

Boundary boundary_of(std::string_view where, const Tensors& values, const Mesh& from,
                     const Mesh& to) {
  Boundary out;
  for (const at::Tensor& value : values) {
    if (!value.defined()) {
      out.values.emplace_back();
      continue;
    }
    const auto dtype = dtype_of(value.scalar_type());
    if (!dtype || value.layout() != at::kStrided) {
      fail<UnsupportedError>(where, "a stage gives ", value.toString(), " of sizes (",
                             join(value.sizes()), "), which cannot be sent to another rank");
    }
    PassedType passed;
    passed.trains = value.requires_grad();
    passed.is_plain = !has_layout(value);
    passed.from = passed.to = {*dtype, to_shape(value.sizes()), Layout()};
    if (!passed.is_plain) {
      Layout layout = layout_of(value);
      if (layout.mesh() != from) {
        fail<ValueError>(where, "a stage on ", from, " gives ", describe(value),
                         "; what it gives must be on its own mesh");
      }
      if (!are_alike(from, to)) layout = without_partial(layout);
      passed.from.layout = layout;
      passed.to.layout = carried(layout, to);
    }
    out.values.emplace_back(std::move(passed));
  }
  return out;
}

Boundary gradients_of(const Boundary& boundary) {
  Boundary out = boundary;
  for (auto& value : out.values) {
    if (!value) continue;
    if (!value->trains) {
      value.reset();
      continue;
    }
    value->trains = false;
    std::swap(value->from, value->to);
    value->from.layout = without_partial(value->from.layout);
    value->to.layout = without_partial(value->to.layout);
  }
  return out;
}

}  // namespace intarsia::pipeline
