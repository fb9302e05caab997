#include "tensor/dispatch/execute.h"

#include <ATen/ATen.h>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "tensor/core/arguments.h"
#include "tensor/dispatch/learn.h"
#include "tensor/dispatch/made_results.h"
#include "tensor/dispatch/written.h"
#include "tensor/local/without_values.h"
#include "tensor/move/state.h"
#include "tensor/random/key.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

using torch::jit::Stack;

/// Nothing of ours may reach a local op.
void assert_local(const Frame& f, const Stack& stack) {
  for (const c10::IValue& value : stack) {
    for_each_tensor(value,
                    [&](const at::Tensor& t) { TORCH_INTERNAL_ASSERT(!is_ours(t), f.info.name); });
  }
}

/// The pieces in another layout. Where no plan leads there, as from one kind of partial to another,
/// the tensor is reduced first.
Pieces move_by_way(TensorState& state, const Spec& spec, Pieces pieces, const Layout& to,
                   const Reason& reason) {
  if (spec->layout == to) return pieces;
  if (const PlanPointer plan = state.plan(spec, to)) {
    return state.move(spec, pieces, plan, reason);
  }
  const Layout reduced = without_partial(spec->layout);
  TORCH_INTERNAL_ASSERT(reduced != spec->layout, spec->layout.to_string(), " -> ", to.to_string());
  const PlanPointer plan = state.plan(spec, reduced);
  return move_by_way(state, spec.with(reduced), state.move(spec, pieces, plan, reason), to, reason);
}

bool is_conjugated(const Pieces& pieces) { return !pieces.empty() && pieces[0].is_conj(); }

/// One call in progress.
class Run {
 public:
  /// `learning`: the decision, where it is new; what only a run can say is filled in.
  Run(Frame& f, const Decision& d, Decision* learning)
      : f_(f),
        d_(d),
        learning_(learning),
        in_{f, d, hosted_coordinates(f.lead->world(), f.mesh()), {}},
        members_(in_.here.size()) {}

  void operator()() {
    const BelowAutograd below;
    if (members_ == 0 && learning_ && (d_.open_results || f_.info.family == Family::rule)) {
      learn_from_zeros(in_, *learning_);
    }
    if (d_.open_results && f_.argument("generator") != nullptr) {
      key_ = next_key(f_.state(), f_.argument("generator"));
    }
    if (reads_number()) f_.lead->world().check_trouble(f_.mesh());
    prepare();
    if (d_.local.beforehand) d_.local.beforehand(in_.pieces);
    results_.resize(d_.results.size());
    for (std::size_t m = 0; m < members_; ++m) run_member(m);
    if (d_.local.afterwards) d_.local.afterwards(results_);
    if (d_.local.afterwards || (f_.info.has_out && d_.local.call)) keep_written();
    if (d_.brings_back || f_.info.has_out) bring_back();
    Stack out;
    std::size_t r = 0;
    for (const c10::Argument& declared : f_.info.op.schema().returns()) {
      out.push_back(wrap(r, declared));
      ++r;
    }
    note_writes(f_);
    f_.finish(std::move(out));
  }

 private:
  /// Reading a number needs the full tensor: no rule could do better.
  bool reads_number() const { return f_.info.base_name == "_local_scalar_dense"; }

  Reason reason() const {
    Reason reason{
        .op = f_.info.name, .implicit = true, .fallback = d_.open_results && !reads_number()};
    // All numbers look alike: a sum that one rank reads must not meet a mean that another does.
    if (reads_number() && f_.lead->made_by != nullptr) reason.made_by = *f_.lead->made_by;
    return reason;
  }

  PlanPointer move_of(std::size_t i) const { return d_.moves.empty() ? nullptr : d_.moves[i]; }

  void prepare() {
    in_.pieces.resize(f_.tensors.size());
    for (std::size_t i = 0; i < f_.tensors.size(); ++i) {
      const Frame::Tensor& t = f_.tensors[i];
      if (!t.given()) continue;
      const PlanPointer plan = move_of(i);
      if (t.is_out) {
        for (std::size_t m = 0; m < members_; ++m)
          in_.pieces[i].push_back(piece_for_out(in_, i, m));
      } else if (t.impl == nullptr) {
        const bool simulated = f_.lead->world().simulated();
        const Pieces given(members_, simulated ? stand_in(*t.tensor) : *t.tensor);
        in_.pieces[i] = plan != nullptr ? f_.state().move(d_.in[i], given, plan, reason()) : given;
      } else {
        in_.pieces[i] = plan == nullptr ? t.impl->pieces()
                        : t.written ? f_.state().move(d_.in[i], t.impl->pieces(), plan, reason())
                                    : f_.state().move(*t.impl, plan, reason());
      }
      // What is written and brought back must not be the operand's own memory, nor what others
      // remember of it.
      if (t.written && !t.is_out && d_.brings_back) {
        for (at::Tensor& p : in_.pieces[i]) p = p.clone();
      }
    }
    if (f_.info.base_name == "view_as_real" && !d_.moves_view && is_conjugated(in_.pieces[0])) {
      // Numbers of their own, which write through: a view of them cannot be lazily conjugated.
      for (at::Tensor& p : in_.pieces[0]) p = p.resolve_conj();
      moved_ = make_tensor(*f_.tensors[0].impl, d_.in[0], in_.pieces[0]);
    }
    if (d_.moves_view) {
      const Frame::Tensor& self = f_.tensors[0];
      // A copy of its own: writes to the view must not reach what the state remembers.
      for (at::Tensor& p : in_.pieces[0]) p = p.clone();
      moved_ = make_tensor(*self.impl, d_.in[0].with(d_.layouts[0]), in_.pieces[0]);
    }
  }

  void run_member(std::size_t m) {
    Stack stack;
    if (d_.local.by_spec) {
      stack = formed_without_values(m);
    } else if (!d_.local.skip.empty() && d_.local.skip[m]) {
      if (learning_) learn_dtypes(in_, m, *learning_);
      stack = made_without_running(in_, m);
    } else {
      stack = in_.local_arguments(m);
      assert_local(f_, stack);
      call_local(m, stack);
    }
    local_results_.push_back(stack);
    results_.resize(std::max(results_.size(), stack.size()));
    for (std::size_t r = 0; r < stack.size(); ++r) {
      if (stack[r].isTensor()) results_[r].push_back(stack[r].toTensor());
    }
  }

  void call_local(std::size_t m, Stack& stack) const {
    try {
      if (d_.local.call) {
        d_.local.call(m, stack);
      } else if (key_) {
        draw_alike(stack);
      } else {
        in_.op().callBoxed(&stack);
      }
    } catch (const c10::NotImplementedError&) {
      if (!f_.lead->world().simulated()) throw;
      f_.refuse(
          "its results cannot be told without values: torch has no kernel of it for the meta "
          "device "
          "in this process",
          "predict from Python, where torch has more of them, or choose other layouts");
    }
  }

  /// A random op that runs on full tensors: every rank draws the same, whoever hosts it, and the
  /// generator that the user knows goes one step, as for every random op.
  void draw_alike(Stack& stack) const {
    const at::Device device = f_.lead->world().piece_device();
    at::Generator alike = at::globalContext().defaultGenerator(device).clone();
    alike.set_current_seed(*key_);
    stack[f_.place_of("generator")] = alike;
    f_.info.op.callBoxed(&stack);
  }

  /// The results in a simulated world. A form of ours runs, where torch can do so without values:
  /// what it needs meanwhile counts as memory.
  Stack formed_without_values(std::size_t m) {
    if (!d_.local.call) return without_values(m);
    Stack stack = in_.local_arguments(m);
    try {
      d_.local.call(m, stack);
      return stack;
    } catch (const c10::NotImplementedError&) {
      if (learning_) learning_->local.call = nullptr;  // nor the next time
      return without_values(m);
    }
  }

  Stack without_values(std::size_t m) {
    if (learning_ && f_.info.family != Family::like) learn_without_values(in_, m, *learning_);
    return made_by_spec(in_, m);
  }

  /// What came of results that are written, into where they are kept.
  void keep_written() {
    for (std::size_t r = 0; r < d_.results.size(); ++r) {
      const Result& result = d_.results[r];
      if (result.kind != Result::Kind::written) continue;
      for (std::size_t m = 0; m < members_; ++m) {
        at::Tensor& piece = in_.pieces[result.operand][m];
        if (piece.is_same(results_[r][m])) continue;
        if (f_.tensors[result.operand].is_out) {
          piece = results_[r][m];
        } else {
          piece.copy_(results_[r][m]);
        }
      }
    }
  }

  void bring_back() {
    std::size_t out = 0;
    for (std::size_t i = 0; i < f_.tensors.size(); ++i) {
      const Frame::Tensor& t = f_.tensors[i];
      if (!t.written || !t.given()) continue;
      const bool is_result = t.is_out || !f_.info.hidden_writes;
      const Layout& from = d_.open_results || !is_result ? d_.layouts[i]
                           : t.is_out                    ? d_.out_layouts[out]
                                                         : d_.out_layouts[0];
      out += is_result ? 1 : 0;
      const Spec& home = d_.in[i];
      const bool resizes = t.is_out && t.impl == nullptr;
      for (std::size_t m = 0; m < members_ && !resizes; ++m)
        check_size(t, in_.pieces[i][m], from, m);
      in_.pieces[i] = move_by_way(f_.state(), home.with(from), std::move(in_.pieces[i]),
                                  home->layout, reason());
      if (t.impl == nullptr) {
        if (members_ > 0 && !in_.pieces[i][0].is_meta()) write_plain(t, in_.pieces[i][0]);
        continue;
      }
      for (std::size_t m = 0; m < members_; ++m) t.impl->pieces()[m].copy_(in_.pieces[i][m]);
    }
  }

  void check_size(const Frame::Tensor& t, const at::Tensor& piece, const Layout& layout,
                  std::size_t m) const {
    const Shape want = local_shape(layout, to_shape(t.tensor->sizes()), in_.here[m]);
    if (piece.sizes() != to_ref(want)) {
      f_.refuse(
          concat("the result has sizes (", join(piece.sizes()), ") where the tensor to write has (",
                 join(want), "), and a distributed tensor cannot be resized"),
          "pass a tensor of the right sizes, or use the op that returns a new one");
    }
  }

  c10::IValue wrap(std::size_t r, const c10::Argument& declared) {
    if (d_.open_results) return wrap_open(r, declared);
    const bool is_value = r >= d_.results.size() || d_.results[r].kind == Result::Kind::value;
    if (is_value && local_results_.empty()) {
      f_.refuse("it returns a value, which only ranks of the mesh know", "call it only on those");
    }
    if (is_value) return local_results_[0][r];
    const Result& result = d_.results[r];
    switch (result.kind) {
      case Result::Kind::written:
        return *f_.tensors[result.operand].tensor;
      case Result::Kind::tensor:
        return wrap_tensor(learned(r, 0, results_[r]), results_[r], false);
      case Result::Kind::list: {
        c10::List<at::Tensor> list;
        for (std::size_t k = 0; k < result.specs.size(); ++k) {
          std::vector<at::Tensor> pieces;
          for (const Stack& s : local_results_) pieces.push_back(s[r].toListRef()[k].toTensor());
          list.push_back(wrap_tensor(learned(r, k, pieces), pieces, true));
        }
        return list;
      }
      case Result::Kind::value:
        break;
    }
    return local_results_[0][r];
  }

  /// The spec of a tensor that was made: its dtype is that of the first local result.
  const Spec& learned(std::size_t r, std::size_t k, const std::vector<at::Tensor>& local) {
    const Spec& known = d_.results[r].specs[k];
    if (!learning_ || !known || local.empty() || !local[0].defined()) return known;
    Spec& spec = learning_->results[r].specs[k];
    spec = spec.with(local[0].scalar_type());
    for (std::size_t m = 0; m < members_; ++m) {
      const Shape want = local_shape(spec->layout, spec->sizes, in_.here[m]);
      if (local[m].sizes() == to_ref(want)) continue;
      f_.refuse(concat("its rule is wrong: it gave a piece of (", join(local[m].sizes()),
                       ") where ", spec, " has (", join(want), ")"),
                concat("`intarsia ops check ", f_.info.base_name, "` shows where else it fails"));
    }
    return spec;
  }

  at::Tensor wrap_tensor(const Spec& spec, const std::vector<at::Tensor>& local, bool in_list) {
    if (!spec || (!local.empty() && !local[0].defined())) return {};
    Pieces pieces;
    const bool is_view = f_.info.family == Family::view;
    for (const at::Tensor& p : local) pieces.push_back(is_view ? p : in_order(p, *spec));
    at::Tensor out = make_tensor(*f_.lead, spec, std::move(pieces));
    impl_of(out).made_by = &f_.info.name;
    if (is_view) share_extra(f_, out, moved_.defined() ? &moved_ : nullptr, in_list);
    return out;
  }

  /// A result of an op that ran on full tensors: replicated, as the local op made it.
  c10::IValue wrap_open(std::size_t r, const c10::Argument& declared) {
    if (declared.alias_info() != nullptr && declared.alias_info()->isWrite()) {
      std::size_t before = r;  // results are written in the order of operands
      for (const Frame::Tensor& t : f_.tensors) {
        if (t.written && before-- == 0) return *t.tensor;
      }
    }
    if (local_results_.empty()) return c10::IValue();
    const auto replicated = [&](const std::vector<at::Tensor>& local) -> at::Tensor {
      if (!local[0].defined()) return {};
      const Spec spec(Layout::replicated(f_.mesh()), to_shape(local[0].sizes()),
                      to_shape(local[0].strides()), 0, local[0].scalar_type());
      return make_tensor(*f_.lead, spec, Pieces(local.begin(), local.end()));
    };
    const c10::IValue& value = local_results_[0][r];
    if (value.isTensor()) return replicated(results_[r]);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (std::size_t k = 0; k < value.toListRef().size(); ++k) {
        std::vector<at::Tensor> pieces;
        for (const Stack& s : local_results_) pieces.push_back(s[r].toListRef()[k].toTensor());
        list.push_back(replicated(pieces));
      }
      return list;
    }
    return value;
  }

  Frame& f_;
  const Decision& d_;
  Decision* const learning_;
  LocalOperands in_;
  const std::size_t members_;
  std::vector<Stack> local_results_;              // by member
  std::vector<std::vector<at::Tensor>> results_;  // by result, of those that are tensors
  at::Tensor moved_;
  std::optional<std::uint64_t> key_;  // of a random op without a rule
};

}  // namespace

void execute(Frame& f, const Decision& d) { Run(f, d, nullptr)(); }

void execute_new(Frame& f, Decision& d) { Run(f, d, &d)(); }

}  // namespace intarsia
