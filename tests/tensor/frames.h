// Calls of ops as the kernel sees them, and not run: for tests of what decides and runs them.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "intarsia/lockstep.h"
#include "intarsia/tensor.h"
#include "tensor/call/decision.h"
#include "tensor/call/frame.h"
#include "tensor/dispatch/local_operands.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia::testing {

using Ints = std::vector<std::int64_t>;
using Numbers = std::vector<double>;

/// The call of an op, by name and overload. Arguments that are left out at the end have their
/// defaults. The tensors that are passed say the world: a lockstep one, or that of one rank.
///
///     FramedCall call("aten::add", "Tensor", {x, y});
///     decide(call.frame);
class FramedCall {
 public:
  FramedCall(const std::string& op, const std::string& overload, torch::jit::Stack arguments)
      : info(c10::Dispatcher::singleton().findSchemaOrThrow(op.c_str(), overload.c_str())),
        stack(complete(info.op.schema(), std::move(arguments))),
        frame(info, stack) {}
  FramedCall(const FramedCall&) = delete;
  FramedCall& operator=(const FramedCall&) = delete;

  OpInfo info;
  torch::jit::Stack stack;
  Frame frame;

 private:
  static torch::jit::Stack complete(const c10::FunctionSchema& schema, torch::jit::Stack given) {
    for (std::size_t i = given.size(); i < schema.arguments().size(); ++i) {
      given.push_back(schema.arguments()[i].default_value().value());
    }
    return given;
  }
};

/// The full tensor, laid out on the mesh of all ranks.
inline at::Tensor laid_out(const at::Tensor& full, std::string_view layout,
                           const Lockstep& lockstep) {
  return distribute(full, Layout::parse(layout, lockstep.mesh()), lockstep.world());
}

/// A decision in which operands stay as they are, plain ones replicated, and results are laid out
/// so.
inline Decision unmoved(const Frame& f, const std::vector<std::string_view>& results = {}) {
  Decision d;
  const Layout replicated = Layout::replicated(f.mesh());
  for (const Frame::Tensor& t : f.tensors) {
    d.in.push_back(!t.given() ? Spec()
                   : t.impl == nullptr
                       ? Spec(replicated, to_shape(t.tensor->sizes()),
                              to_shape(t.tensor->strides()), 0, t.tensor->scalar_type())
                       : t.impl->spec());
    d.layouts.push_back(d.in.back() ? d.in.back()->layout : replicated);
  }
  for (const std::string_view text : results) {
    d.out_layouts.push_back(Layout::parse(text, f.mesh()));
  }
  return d;
}

/// The call as its rule sees it.
inline Question question_of(const Frame& f, const Decision& d) {
  std::vector<Operand> operands;
  for (const Spec& s : d.in) {
    operands.push_back(s ? Operand{s->sizes, s->dtype, true} : Operand{});
  }
  return {f.info.op.schema(), f.arguments(), std::move(operands)};
}

/// The operands of a decision that moves none of them.
inline LocalOperands operands_of(const Frame& f, const Decision& d) {
  LocalOperands out{f, d, hosted_coordinates(f.lead->world(), f.mesh()), {}};
  for (const Frame::Tensor& t : f.tensors) {
    out.pieces.push_back(!t.given()          ? Pieces()
                         : t.impl == nullptr ? Pieces(out.here.size(), *t.tensor)
                                             : t.impl->pieces());
  }
  return out;
}

/// What the local run of such a decision gives: for each result, the pieces.
inline std::vector<std::vector<at::Tensor>> run_on_pieces(const Frame& f, const Decision& d) {
  const BelowAutograd below;
  LocalOperands operands = operands_of(f, d);
  if (d.local.beforehand) d.local.beforehand(operands.pieces);
  std::vector<std::vector<at::Tensor>> results;
  for (std::size_t m = 0; m < operands.here.size(); ++m) {
    torch::jit::Stack stack = operands.local_arguments(m);
    if (d.local.call) {
      d.local.call(m, stack);
    } else {
      operands.op().callBoxed(&stack);
    }
    results.resize(stack.size());
    for (std::size_t r = 0; r < stack.size(); ++r) results[r].push_back(stack[r].toTensor());
  }
  if (d.local.afterwards) d.local.afterwards(results);
  return results;
}

/// The elements of a plain tensor, row by row.
inline Numbers numbers(const at::Tensor& plain) {
  const at::Tensor flat = plain.to(at::kDouble).contiguous();
  const auto* data = flat.const_data_ptr<double>();
  return {data, data + flat.numel()};
}

/// Those of each piece.
template <class Tensors>
std::vector<Numbers> numbers_of(const Tensors& pieces) {
  std::vector<Numbers> out;
  for (const at::Tensor& piece : pieces) out.push_back(numbers(piece));
  return out;
}

/// 0, 1, 2, ... in a tensor of these sizes.
inline at::Tensor counting(const Ints& sizes) {
  return at::arange(c10::multiply_integers(sizes), at::kDouble).view(sizes);
}

/// A tensor of one dimension.
inline at::Tensor row_of(const Numbers& values) { return at::tensor(values, at::kDouble); }

}  // namespace intarsia::testing
