#include "tensor/dispatch/decide.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "rules/choose.h"
#include "rules/wrong_call.h"
#include "tensor/dispatch/strides.h"
#include "tensor/local/local_forms.h"
#include "tensor/local/without_values.h"
#include "tensor/move/state.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

/// Every operand's spec; refuses operands that cannot be together.
void read_operands(const Frame& f, Decision& d) {
  const Layout replicated = Layout::replicated(f.mesh());
  for (const Frame::Tensor& t : f.tensors) {
    if (!t.given()) {
      d.in.emplace_back();
      continue;
    }
    if (t.impl == nullptr) {
      const bool is_result = t.written && (t.is_out || !f.info.hidden_writes);
      if (is_result && hosted_coordinates(f.lead->world(), f.mesh()).empty()) {
        f.refuse(
            concat("writes a distributed result into a plain tensor, and this process hosts no "
                   "rank of ",
                   f.mesh()),
            "write it on ranks of the mesh only");
      }
      if (t.tensor->layout() != at::kStrided) {
        f.refuse("a sparse or otherwise unstrided tensor is beside distributed ones",
                 "make it dense");
      }
      d.in.emplace_back(replicated, to_shape(t.tensor->sizes()), to_shape(t.tensor->strides()), 0,
                        t.tensor->scalar_type());
      continue;
    }
    if (&t.impl->state() != &f.state()) {
      f.refuse("tensors of two worlds meet", "keep them apart, or go through full()");
    }
    if (t.impl->spec()->layout.mesh() != f.mesh()) {
      f.refuse(concat("tensors are on different meshes, ", f.mesh(), " and ",
                      t.impl->spec()->layout.mesh()),
               "put all of them on one mesh; axes that a tensor does not use are R");
    }
    d.in.push_back(t.impl->spec());
    if (t.reduced) d.kept_layouts.push_back(*t.reduced);
  }
}

std::vector<Operand> rule_operands(const Decision& d) {
  std::vector<Operand> out;
  for (const Spec& s : d.in) {
    out.push_back(s ? Operand{s->sizes, s->dtype, true} : Operand{});
  }
  return out;
}

std::vector<Candidate> candidates(const Frame& f, const Decision& d, std::size_t count) {
  std::vector<Candidate> out;
  const Layout replicated = Layout::replicated(f.mesh());
  for (std::size_t i = 0; i < count; ++i) {
    const Spec& s = d.in[i];
    if (!s) {
      out.push_back({replicated, 0, std::nullopt, false});
      continue;
    }
    out.push_back({s->layout,
                   static_cast<double>(s->numel) * static_cast<double>(c10::elementSize(s->dtype)),
                   f.tensors[i].reduced, true});
  }
  return out;
}

void replicate_all(const Frame& f, Decision& d) {
  d.layouts.assign(f.tensors.size(), Layout::replicated(f.mesh()));
  d.open_results = true;
}

/// The operand that an op in place writes.
std::optional<std::size_t> written_operand(const Frame& f) {
  if (f.info.hidden_writes) return std::nullopt;
  for (std::size_t i = 0; i < f.tensors.size(); ++i) {
    if (f.tensors[i].written && !f.tensors[i].is_out) return i;
  }
  return std::nullopt;
}

/// Whether operands that are written, and are no results, have to move: then copies are written,
/// and brought back.
bool moves_written(const Frame& f, const Decision& d) {
  if (!f.info.hidden_writes) return false;
  for (std::size_t i = 0; i < f.tensors.size(); ++i) {
    const Frame::Tensor& t = f.tensors[i];
    if (!t.written || t.is_out || !t.given()) continue;
    if (d.in[i]->layout != d.layouts[i]) return true;
  }
  return false;
}

/// Whether a plain operand is written. Every rank writes a copy of its own, and one of these is
/// brought back: ranks that are played by one process write once.
bool writes_plain(const Frame& f) {
  return std::any_of(f.tensors.begin(), f.tensors.end(), [](const Frame::Tensor& t) {
    return t.written && t.given() && t.impl == nullptr;
  });
}

void check_in_place_sizes(const Frame& f, const Decision& d, std::size_t self,
                          const std::vector<Shape>& sizes) {
  if (sizes.empty() || sizes[0] == d.in[self]->sizes) return;
  f.refuse(concat("an op in place would have to change the sizes (", join(d.in[self]->sizes),
                  ") to (", join(sizes[0]), ")"),
           "use the op that is not in place");
}

/// A plain tensor takes the sizes of the result, as with plain operands.
void check_out_sizes(const Frame& f, Decision& d, const std::vector<Shape>& sizes) {
  std::size_t k = 0;
  for (std::size_t i = 0; i < f.tensors.size(); ++i) {
    if (!f.tensors[i].is_out || k >= sizes.size()) continue;
    if (d.in[i]->sizes != sizes[k] && f.tensors[i].impl == nullptr) {
      d.in[i] = Spec(d.in[i]->layout, sizes[k], contiguous_strides(sizes[k]), 0, d.in[i]->dtype);
    }
    if (d.in[i]->sizes != sizes[k]) {
      f.refuse(concat("out= has sizes (", join(d.in[i]->sizes), ") where the result has (",
                      join(sizes[k]), "), and a distributed tensor cannot be resized"),
               "pass a tensor of the right sizes, or use the op without out=");
    }
    ++k;
  }
}

/// Whether the op on partial values gives partial values of its result: not where integers wrap
/// around in one type and are then read in another, or where each partial value would be rounded.
bool adds_up(const Question& q, const Decision& d, const Row& row) {
  const c10::IValue* dtype = q.arg("dtype");
  if (dtype != nullptr && dtype->isInt() && is_integral(dtype->toScalarType())) return false;
  for (std::size_t i = 0; i < row.in.size(); ++i) {
    if (row.in[i].is_partial() && d.in[i] && d.in[i]->partial && is_integral(d.in[i]->dtype)) {
      return false;
    }
  }
  return true;
}

/// The sizes that a rule gives; none where only the result can say them.
std::vector<Shape> sizes_by_rule(const Rule& rule, const Question& q) {
  std::vector<Shape> sizes = rule.sizes(q);
  for (const Shape& shape : sizes) {
    for (const std::int64_t n : shape) require_call(n >= 0);
  }
  return sizes;
}

void decide_by_rule(const Frame& f, Decision& d) {
  const Rule& rule = *f.info.rule;
  const Question q(f.info.op.schema(), f.arguments(), rule_operands(d));
  const std::vector<Shape> sizes = sizes_by_rule(rule, q);
  if (sizes.empty() && q.results() > 0) {
    replicate_all(f, d);
    set_form_of_strides(f, rule, d);
    return;
  }
  std::vector<Row> rows = rule.rows(q);
  // A formula may refuse what the op itself does not: to reduce no elements.
  const bool empty = !d.in.empty() && d.in[0] && d.in[0]->numel == 0;
  std::erase_if(rows, [&](const Row& row) {
    return (row.formula && empty) || (row.linear && !row.any_kind && !adds_up(q, d, row));
  });
  const auto operands = candidates(f, d, q.inputs());
  const std::size_t results = std::max<std::size_t>(q.results(), 1);
  const auto self = written_operand(f);
  const Topology& topology = f.state().world().plans().topology();
  std::optional<Choice> choice;
  if (self) {
    check_in_place_sizes(f, d, *self, sizes);
    choice = choose(f.mesh(), operands, rows, results, {.keep = self, .topology = &topology});
    d.brings_back = !choice;
  }
  if (!choice) {
    choice = choose(f.mesh(), operands, rows, results,
                    {.later = f.in_backward, .reduced = d.brings_back, .topology = &topology});
  }
  TORCH_INTERNAL_ASSERT(choice, "running replicated is always possible");
  d.layouts = std::move(choice->in);
  d.layouts.resize(f.tensors.size(), Layout::replicated(f.mesh()));
  d.out_layouts = choice->out;
  if (f.info.has_out) check_out_sizes(f, d, sizes);
  if (choice->by_formula) d.strategy = Strategy::formula;
  d.brings_back |= moves_written(f, d);
  for (std::size_t r = 0; r < q.results(); ++r) {
    Result result{Result::Kind::tensor, {}, 0};
    if (self) {
      result = {Result::Kind::written, {}, *self};
    } else if (f.info.has_out) {
      result = {Result::Kind::written, {}, q.inputs() + r};
    } else {
      // The dtype is filled in from the first local result: it depends on nothing else.
      result.specs.emplace_back(choice->out[r], sizes[r],
                                strides_of_result(f, d, rule, sizes[r], r), 0,
                                d.in[0] ? d.in[0]->dtype : at::kFloat);
    }
    d.results.push_back(std::move(result));
  }
  if (d.strategy != Strategy::formula) set_local_form(f, rule, q, sizes, d);
}

/// A new tensor made after another one is laid out like it, with R for partial, if it has the same
/// sizes. Otherwise it is replicated.
void decide_like(const Frame& f, Decision& d) {
  const Mesh& mesh = f.mesh();
  Layout layout = Layout::replicated(mesh);
  const c10::IValue* size = f.argument("size");
  const Shape sizes =
      size != nullptr ? to_shape(at::IntArrayRef(size->toIntVector())) : d.in[0]->sizes;
  if (sizes == d.in[0]->sizes) {
    layout = without_partial(d.in[0]->layout);
  }
  Shape strides = contiguous_strides(sizes);
  if (const c10::IValue* given = f.argument("stride")) {
    // Only dense strides can be sharded.
    strides = dense_strides(sizes, to_shape(at::IntArrayRef(given->toIntVector())));
  } else if (size == nullptr) {
    strides = strides_by_argument(f, sizes).value_or(strides_like(*d.in[0]));
  }
  const c10::IValue* dtype = f.argument("dtype");
  const at::ScalarType type = dtype != nullptr && !dtype->isNone()
                                  ? static_cast<at::ScalarType>(dtype->toInt())
                                  : d.in[0]->dtype;
  d.layouts.assign(f.tensors.size(), layout);
  for (std::size_t i = 0; i < d.layouts.size(); ++i) {
    if (d.in[i]) d.layouts[i] = d.in[i]->layout;
  }
  d.results.push_back({Result::Kind::tensor, {Spec(layout, sizes, strides, 0, type)}, 0});
  d.out_layouts = {layout};
  set_local_factory(f, d);
}

/// A rank that has nothing of some dimension, though the operand has, does not run the op: its
/// results are empty, or add nothing to what others compute.
void find_skips(const Frame& f, Decision& d, const std::vector<Coordinate>& here) {
  if (f.info.family != Family::rule || d.open_results) return;
  if (d.local.runs_empty || f.info.rule->options.runs_empty) return;
  d.local.skip.assign(here.size(), false);
  bool any = false;
  for (std::size_t m = 0; m < here.size(); ++m) {
    for (std::size_t i = 0; i < d.in.size(); ++i) {
      if (!d.in[i]) continue;
      const Shape local = local_shape(d.layouts[i], d.in[i]->sizes, here[m]);
      for (std::size_t k = 0; k < local.size(); ++k) {
        if (local[k] == 0 && d.in[i]->sizes[k] != 0) d.local.skip[m] = any = true;
      }
    }
  }
  if (!any) d.local.skip.clear();
}

bool is_simple(const Frame& f, const Decision& d, const std::vector<Coordinate>& here) {
  const bool same_op = !d.local.call && !d.local.beforehand && !d.local.afterwards;
  const bool stays = d.moves.empty() && d.local.skip.empty() && !d.brings_back && !d.moves_view;
  return here.size() == 1 && same_op && stays && !d.local.by_spec && !d.open_results &&
         !f.info.has_out;
}

}  // namespace

void plan_moves(const Frame& f, Decision& d) {
  bool any = false;
  std::vector<PlanPointer> moves(d.in.size());
  for (std::size_t i = 0; i < d.in.size(); ++i) {
    if (!d.in[i] || d.in[i]->layout == d.layouts[i] || f.tensors[i].is_out) continue;
    moves[i] = f.state().plan(d.in[i], d.layouts[i]);
    if (!moves[i]) {
      f.refuse(concat("no exact way leads from ", d.in[i]->layout.placements_text(), " to ",
                      d.layouts[i].placements_text()),
               "redistribute it to R first");
    }
    any = true;
  }
  if (any) d.moves = std::move(moves);
}

Decision decide(const Frame& f) {
  Decision d;
  f.check_writes();
  read_operands(f, d);
  switch (f.info.family) {
    case Family::rule:
      try {
        decide_by_rule(f, d);
      } catch (const WrongCall&) {
        d = {};
        read_operands(f, d);
        replicate_all(f, d);
      }
      break;
    case Family::view:
      decide_view(f, d);
      break;
    case Family::like:
      decide_like(f, d);
      break;
    case Family::each:
      decide_each(f, d);
      break;
    default:
      replicate_all(f, d);
  }
  plan_moves(f, d);
  if (d.strategy == Strategy::formula) return d;
  if (f.info.family == Family::view) d.moves_view = !d.moves.empty();
  if (d.open_results && (f.info.in_place || f.info.has_out || f.info.hidden_writes)) {
    d.brings_back = true;
  }
  d.brings_back |= writes_plain(f);
  const auto here = hosted_coordinates(f.lead->world(), f.mesh());
  find_skips(f, d, here);
  if (f.lead->world().simulated()) leave_out_values(f, d);
  if (d.strategy == Strategy::pieces && is_simple(f, d, here)) d.strategy = Strategy::simple;
  return d;
}

}  // namespace intarsia
