#include "tensor/execute.h"

#include <ATen/ATen.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "tensor/decide.h"
#include "tensor/neutral.h"
#include "tensor/random.h"
#include "tensor/simulated.h"
#include "tensor/state.h"

namespace intarsia {
namespace {

using Stack = torch::jit::Stack;

// Pieces may be lazily conjugated, negated or zero: the dispatcher knows where to resolve that.
constexpr c10::DispatchKeySet kLazy({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                     c10::DispatchKey::ZeroTensor});

/// What a view has from its base: the count of writes, where its elements come from, and whether
/// plain tensors share its memory. `moved`: the copy that it is a view of, if not of the base.
void share_extra(const Frame& f, const at::Tensor& out, const at::Tensor* moved, bool in_list) {
  impl_of(out).track_like(*f.tensors[0].impl);
  if (f.info.base_name == "_unsafe_view") return;
  DistributedImpl& base = *f.tensors[0].impl;
  DistributedImpl& view = impl_of(out);
  if (moved != nullptr) {
    Extra& extra = view.need_extra();
    extra.window = window_of(base, *moved);
    if (view.spec()->partial) extra.memory = impl_of(*moved).memory();
    return;
  }
  if (base.is_inference()) view.need_extra().inference_writes = base.inference_writes();
  if (base.spec()->partial) {
    Extra& extra = view.need_extra();
    extra.memory = base.memory();
    if (f.info.returns == 1 && out.defined() && view.spec()->partial && !in_list) {
      extra.view_of = std::make_unique<Extra::ViewOf>(
          Extra::ViewOf{base.snapshot(), f.info.op,
                        torch::jit::Stack(f.arguments().begin() + 1, f.arguments().end())});
    }
  }
  if (!base.extra()) return;
  if (base.extra()->on_use && f.info.returns == 1 && !in_list) {
    view.need_extra().on_use =
        std::make_unique<OnUse>(base.extra()->on_use->then(f.info.op, f.arguments().subspan(1)));
  }
  if (base.extra()->exposed) view.expose();
  if (base.extra()->window) view.need_extra().window = base.extra()->window;
}

/// After a call: what it wrote is no longer what was remembered.
void note_writes(const Frame& f) {
  for (const Frame::Tensor& t : f.tensors) {
    if (!t.written || t.impl == nullptr) continue;
    f.state().note_write(*t.impl);
    if (t.impl->extra()) write_through(*t.impl, f.info.name);
    // ATen counts writes to single tensors itself.
    const bool in_list = f.info.arguments[t.argument].kind == ArgumentKind::tensor_list;
    if (in_list && !t.impl->is_inference()) t.impl->bump_version();
  }
}

/// The result of an op into a plain tensor; out= takes its sizes, with torch's warning.
void write_plain(const Frame::Tensor& t, const at::Tensor& result) {
  if (t.is_out) at::native::resize_output(*t.tensor, result.sizes());
  t.tensor->copy_(result);
}

/// One call in progress.
class Run {
 public:
  Run(Frame& f, Decision& d, bool first)
      : f_(f),
        d_(d),
        first_(first),
        here_(hosted_coordinates(f.lead->world(), f.mesh())),
        members_(here_.size()) {}

  void operator()() {
    const BelowAutograd below;
    if (members_ == 0 && first_ && (d_.open_results || f_.info.family == Family::rule)) {
      learn_from_zeros();
    }
    if (d_.open_results && f_.argument("generator") != nullptr) {
      key_ = next_key(f_.state(), f_.argument("generator"));
    }
    prepare();
    if (d_.beforehand) d_.beforehand(pieces_);
    results_.resize(d_.results.size());
    for (std::size_t m = 0; m < members_; ++m) run_member(m);
    if (d_.afterwards) d_.afterwards(results_);
    if (d_.afterwards || (f_.info.has_out && d_.local_call)) keep_written();
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
  Reason reason() const {
    // To read a number is to have the whole of it: no rule could do better.
    const bool reads_number = f_.info.base_name == "_local_scalar_dense";
    return {.op = f_.info.name, .implicit = true, .fallback = d_.open_results && !reads_number};
  }

  PlanPointer move_of(std::size_t i) const { return d_.moves.empty() ? nullptr : d_.moves[i]; }

  void prepare() {
    pieces_.resize(f_.tensors.size());
    for (std::size_t i = 0; i < f_.tensors.size(); ++i) {
      const Frame::Tensor& t = f_.tensors[i];
      if (!t.given()) continue;
      const PlanPointer plan = move_of(i);
      if (t.is_out) {
        for (std::size_t m = 0; m < members_; ++m) pieces_[i].push_back(piece_for_out(i, m));
      } else if (t.impl == nullptr) {
        const bool simulated = f_.lead->world().simulated();
        const Pieces whole(members_, simulated ? stand_in(*t.tensor) : *t.tensor);
        pieces_[i] = plan != nullptr ? f_.state().move(d_.in[i], whole, plan, reason()) : whole;
      } else {
        pieces_[i] = plan == nullptr ? t.impl->pieces()
                     : t.written     ? f_.state().move(d_.in[i], t.impl->pieces(), plan, reason())
                                     : f_.state().move(*t.impl, plan, reason());
      }
      // What is written and brought back must not be the operand's own memory, nor what others
      // remember of it.
      if (t.written && !t.is_out && d_.brings_back) {
        for (at::Tensor& p : pieces_[i]) p = p.clone();
      }
    }
    if (f_.info.base_name == "view_as_real" && !d_.moves_view && is_conjugated(pieces_[0])) {
      // Numbers of their own, which write through: a view of them cannot be lazily conjugated.
      for (at::Tensor& p : pieces_[0]) p = p.resolve_conj();
      moved_ = make_tensor(*f_.tensors[0].impl, d_.in[0], pieces_[0]);
    }
    if (d_.moves_view) {
      const Frame::Tensor& self = f_.tensors[0];
      // A copy of its own: writes to the view must not reach what the state remembers.
      for (at::Tensor& p : pieces_[0]) p = p.clone();
      moved_ = make_tensor(*self.impl, d_.in[0].with(d_.layouts[0]), pieces_[0]);
    }
  }

  static bool is_conjugated(const Pieces& pieces) { return !pieces.empty() && pieces[0].is_conj(); }

  /// What a local op writes for out=: it takes the sizes that the op gives. Where the memory format
  /// of the result is that of an operand, it has them already, in the order that out= has: some ops
  /// write by strides that they do not look up.
  at::Tensor piece_for_out(std::size_t i, std::size_t m) const {
    const SpecData& home = *d_.in[i];
    const at::TensorOptions options =
        at::TensorOptions(f_.lead->world().piece_device()).dtype(home.dtype);
    const bool any_format = d_.open_results || f_.info.family != Family::rule ||
                            f_.info.rule->options.format == RuleOptions::Format::contiguous;
    if (any_format) return at::empty({0}, options);
    std::size_t out = 0;
    for (std::size_t k = 0; k < i; ++k) out += f_.tensors[k].is_out ? 1 : 0;
    const Shape sizes = local_shape(d_.out_layouts[out], home.sizes, here_[m]);
    return at::empty_strided(to_ref(sizes), to_ref(strides_in_order_of(sizes, home)), options);
  }

  c10::IValue local_list(const c10::IValue& value, std::size_t& operand, std::size_t m) const {
    const std::size_t n = value.toListRef().size();
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      list.reserve(n);
      for (std::size_t k = 0; k < n; ++k) list.push_back(pieces_[operand++][m]);
      return list;
    }
    c10::List<std::optional<at::Tensor>> list;
    list.reserve(n);
    for (std::size_t k = 0; k < n; ++k, ++operand) {
      list.push_back(f_.tensors[operand].given() ? std::optional(pieces_[operand][m])
                                                 : std::nullopt);
    }
    return list;
  }

  /// The arguments, with the pieces of one member for the tensors.
  Stack stack_of(std::size_t m) const {
    Stack stack;
    stack.reserve(f_.info.arguments.size());
    std::size_t operand = 0;
    for (std::size_t i = 0; i < f_.info.arguments.size(); ++i) {
      const c10::IValue& value = f_.argument(i);
      switch (f_.info.arguments[i].kind) {
        case ArgumentKind::tensor:
          stack.push_back(f_.tensors[operand].given() ? c10::IValue(pieces_[operand][m]) : value);
          ++operand;
          break;
        case ArgumentKind::tensor_list:
          stack.push_back(value.isNone() ? value : local_list(value, operand, m));
          break;
        default:
          stack.push_back(value);
      }
    }
    return stack;
  }

  Stack local_stack(std::size_t m) const {
    Stack stack = stack_of(m);
    if (d_.local_op) stack.resize(d_.local_op->schema().arguments().size());
    if (!d_.local_arguments.empty()) {
      for (const auto& [index, value] : d_.local_arguments[m]) stack[index] = value;
    }
    return stack;
  }

  void run_member(std::size_t m) {
    Stack stack;
    if (d_.by_spec) {
      stack = made_without_values(m);
    } else if (!d_.skip.empty() && d_.skip[m]) {
      stack = made_without_running(m);
    } else {
      stack = local_stack(m);
      assert_local(stack);
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
      if (d_.local_call) {
        d_.local_call(m, stack);
      } else if (key_) {
        draw_alike(stack);
      } else {
        (d_.local_op ? *d_.local_op : f_.info.op).callBoxed(&stack);
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
  Stack made_without_values(std::size_t m) {
    if (!d_.local_call) return made_by_spec(m);
    Stack stack = local_stack(m);
    try {
      d_.local_call(m, stack);
      return stack;
    } catch (const c10::NotImplementedError&) {
      d_.local_call = nullptr;  // nor the next time
      return made_by_spec(m);
    }
  }

  /// Where their specs say all about them.
  Stack made_by_spec(std::size_t m) {
    if (first_ && f_.info.family != Family::like) learn_without_values(m);
    const auto piece = [&](const SpecData& spec, const Layout& layout) {
      const Shape sizes = local_shape(layout, spec.sizes, here_[m]);
      return at::empty_strided(to_ref(sizes), to_ref(strides_in_order_of(sizes, spec)),
                               at::TensorOptions(at::kMeta).dtype(spec.dtype));
    };
    Stack out;
    for (std::size_t r = 0; r < d_.results.size(); ++r) {
      const Result& result = d_.results[r];
      if (result.kind == Result::Kind::written) {
        at::Tensor& written = pieces_[result.operand][m];
        if (f_.tensors[result.operand].is_out) {
          written = piece(*d_.in[result.operand], d_.out_layouts[r]);
        }
        out.emplace_back(written);
      } else if (result.kind == Result::Kind::list) {
        c10::List<at::Tensor> list;
        for (const Spec& spec : result.specs) list.push_back(piece(*spec, spec->layout));
        out.emplace_back(std::move(list));
      } else if (!result.specs[0]) {
        out.emplace_back(at::Tensor());
      } else {
        out.emplace_back(piece(*result.specs[0], d_.out_layouts[r]));
      }
    }
    return out;
  }

  /// The dtypes of the results, from a run without values or, where torch has no kernel for that,
  /// on few elements of each tensor.
  void learn_without_values(std::size_t m) {
    const auto known = [](const Result& r) { return r.kind == Result::Kind::written; };
    if (std::all_of(d_.results.begin(), d_.results.end(), known)) return;
    const Uncounted uncounted;
    Stack stack = local_stack(m);
    try {
      (d_.local_op ? *d_.local_op : f_.info.op).callBoxed(&stack);
    } catch (const c10::NotImplementedError&) {
      auto found = run_tiny(m, /*keeps_rows=*/false);
      if (!found) found = run_tiny(m, /*keeps_rows=*/true);
      if (!found) return check_dtypes_agree();
      stack = std::move(*found);
    }
    take_dtypes(stack);
    for (std::size_t r = 0; r < d_.results.size(); ++r) {
      if (d_.results[r].kind != Result::Kind::list) continue;
      for (std::size_t k = 0; k < d_.results[r].specs.size(); ++k) {
        Spec& spec = d_.results[r].specs[k];
        spec = spec.with(stack[r].toListRef()[k].toTensor().scalar_type());
      }
    }
  }

  /// Nothing, where the made-up sizes do not fit.
  std::optional<Stack> run_tiny(std::size_t m, bool keeps_rows) {
    std::vector<Pieces> whole = pieces_;
    for (Pieces& operand : pieces_) {
      if (!operand.empty() && operand[m].is_meta()) operand[m] = tiny(operand[m], keeps_rows);
    }
    Stack stack = stack_of(m);
    pieces_ = std::move(whole);
    try {
      f_.info.op.callBoxed(&stack);
    } catch (const c10::Error&) {
      return std::nullopt;
    }
    return stack;
  }

  /// Then the results have the operands' dtype; else nobody here knows.
  void check_dtypes_agree() const {
    for (const Spec& spec : d_.in) {
      if (!spec || spec->dtype == d_.in[0]->dtype) continue;
      f_.refuse(
          "the dtypes of its results cannot be told without values: torch has no kernel of it for "
          "the meta device in this process",
          "predict from Python, where torch has more of them, or give it operands of one dtype");
    }
  }

  /// What came of results that are written, into where they are kept.
  void keep_written() {
    for (std::size_t r = 0; r < d_.results.size(); ++r) {
      const Result& result = d_.results[r];
      if (result.kind != Result::Kind::written) continue;
      for (std::size_t m = 0; m < members_; ++m) {
        at::Tensor& piece = pieces_[result.operand][m];
        if (piece.is_same(results_[r][m])) continue;
        if (f_.tensors[result.operand].is_out) {
          piece = results_[r][m];
        } else {
          piece.copy_(results_[r][m]);
        }
      }
    }
  }

  /// Nothing of ours may reach a local op.
  void assert_local(const Stack& stack) const {
    for (const c10::IValue& value : stack) {
      if (value.isTensor()) {
        TORCH_INTERNAL_ASSERT(!is_ours(value.toTensor()), f_.info.name);
      } else if (value.isTensorList() || value.isOptionalTensorList()) {
        for (const c10::IValue& e : value.toListRef()) {
          TORCH_INTERNAL_ASSERT(!e.isTensor() || !is_ours(e.toTensor()), f_.info.name);
        }
      }
    }
  }

  /// The dtypes of the results, from a run on pieces with one element where this rank has none:
  /// they must be the same on all ranks.
  void learn_dtypes(std::size_t m) {
    std::vector<Pieces> real = pieces_;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      if (f_.tensors[i].is_out || pieces_[i].empty() || pieces_[i][m].numel() > 0) continue;
      std::vector<std::int64_t> sizes = pieces_[i][m].sizes().vec();
      for (std::size_t k = 0; k < sizes.size(); ++k) {
        if (sizes[k] == 0 && d_.in[i]->sizes[k] != 0) sizes[k] = 1;
      }
      pieces_[i][m] = at::zeros(sizes, pieces_[i][m].options());
    }
    Stack stack = local_stack(m);
    for (const auto& size : f_.info.rule->options.local_sizes) {
      stack[f_.place_of(size.argument)] =
          pieces_[size.operand][m].size(static_cast<std::int64_t>(size.dim));
    }
    pieces_ = std::move(real);
    try {
      f_.info.op.callBoxed(&stack);
    } catch (const c10::Error&) {
      return;  // made-up sizes do not always fit; then the first operand's dtype is the best guess
    }
    take_dtypes(stack);
  }

  /// The arguments with tensors of the global sizes that hold zeros; or, for ops that divide by
  /// them, identity matrices and ones.
  Stack stack_of_made_up(bool regular) {
    const bool abstract = f_.info.op.hasKernelForDispatchKey(c10::DispatchKey::Meta);
    const at::Device device = abstract ? at::Device(at::kMeta) : f_.lead->world().device();
    std::vector<Pieces> real = std::exchange(pieces_, std::vector<Pieces>(f_.tensors.size()));
    for (std::size_t i = 0; i < f_.tensors.size(); ++i) {
      const Frame::Tensor& t = f_.tensors[i];
      if (!t.given()) continue;
      const SpecData& spec = *d_.in[i];
      const auto options = at::TensorOptions(device).dtype(spec.dtype);
      const bool number = t.impl == nullptr && t.tensor->dim() == 0;
      const bool looks_at_strides =
          f_.info.rule && f_.info.rule->options.format != RuleOptions::Format::contiguous;
      const std::size_t dims = spec.sizes.size();
      const bool matrix = regular && dims >= 2 && !is_whole(spec.dtype);
      pieces_[i].push_back(
          number ? *t.tensor
          : t.written || looks_at_strides
              ? at::empty_strided(to_ref(spec.sizes), to_ref(spec.strides), options).zero_()
          : matrix ? at::eye(spec.sizes[dims - 2], spec.sizes[dims - 1], options)
                         .expand(to_ref(spec.sizes))
                   : at::full({}, regular ? 1 : 0, options).expand(to_ref(spec.sizes)));
    }
    Stack stack = stack_of(0);
    pieces_ = std::move(real);
    return stack;
  }

  /// Where no piece lives here: what the results are, from a run on zeros of the global sizes.
  void learn_from_zeros() {
    const auto has_tag = [&](at::Tag tag) { return f_.info.op.hasTag(tag); };
    if (d_.open_results &&
        (has_tag(at::Tag::dynamic_output_shape) || has_tag(at::Tag::data_dependent_output))) {
      f_.refuse(
          "what it returns depends on values, of which this process, outside the mesh, has none",
          "call it only on ranks of the mesh");
    }
    Stack stack = stack_of_made_up(/*regular=*/false);
    try {
      f_.info.op.callBoxed(&stack);
    } catch (const c10::Error&) {
      stack = stack_of_made_up(/*regular=*/true);
      try {
        f_.info.op.callBoxed(&stack);
      } catch (const c10::Error&) {
        if (d_.open_results) throw;
        return;  // the first operand's dtype is the best guess
      }
    }
    if (d_.open_results) {
      close_results(stack);
    } else {
      take_dtypes(stack);
    }
  }

  void take_dtypes(const Stack& stack) {
    for (std::size_t r = 0; r < d_.results.size(); ++r) {
      if (d_.results[r].kind != Result::Kind::tensor || !stack[r].isTensor()) continue;
      const at::Tensor& t = stack[r].toTensor();
      Spec& spec = d_.results[r].specs[0];
      spec = t.defined() ? spec.with(t.scalar_type()) : Spec();
    }
  }

  /// Takes what a run on whole tensors gave as what every such call gives.
  void close_results(const Stack& stack) {
    const Layout whole = Layout::replicated(f_.mesh());
    const auto spec_of = [&](const at::Tensor& t) {
      return t.defined()
                 ? Spec(whole, to_shape(t.sizes()), to_shape(t.strides()), 0, t.scalar_type())
                 : Spec();
    };
    const auto& returns = f_.info.op.schema().returns();
    for (std::size_t r = 0; r < returns.size(); ++r) {
      Result result;
      const auto* alias = returns[r].alias_info();
      if (alias != nullptr && alias->isWrite()) {
        std::size_t before = r;
        const auto written =
            std::find_if(f_.tensors.begin(), f_.tensors.end(),
                         [&](const Frame::Tensor& t) { return t.written && before-- == 0; });
        result = {
            Result::Kind::written, {}, static_cast<std::size_t>(written - f_.tensors.begin())};
      } else if (stack[r].isTensor()) {
        result = {Result::Kind::tensor, {spec_of(stack[r].toTensor())}, 0};
      } else if (stack[r].isTensorList()) {
        result.kind = Result::Kind::list;
        for (const at::Tensor& t : stack[r].toTensorVector()) result.specs.push_back(spec_of(t));
      }
      d_.results.push_back(std::move(result));
    }
    d_.out_layouts.assign(std::max<std::size_t>(returns.size(), f_.tensors.size()), whole);
    d_.open_results = false;
  }

  Stack made_without_running(std::size_t m) {
    if (first_) learn_dtypes(m);
    Stack out;
    for (std::size_t r = 0; r < d_.results.size(); ++r) {
      const Result& result = d_.results[r];
      const bool written = result.kind == Result::Kind::written;
      if (written && !f_.tensors[result.operand].is_out) {
        out.emplace_back(pieces_[result.operand][m]);
        continue;
      }
      if (!written && !result.specs[0]) {
        out.emplace_back(at::Tensor());
        continue;
      }
      const SpecData& spec = written ? *d_.in[result.operand] : *result.specs[0];
      const Shape sizes = local_shape(d_.out_layouts[r], spec.sizes, here_[m]);
      out.emplace_back(
          neutral_piece(sizes, d_.out_layouts[r],
                        at::TensorOptions(f_.lead->world().piece_device()).dtype(spec.dtype)));
      if (written) pieces_[result.operand][m] = out.back().toTensor();
    }
    return out;
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
      for (std::size_t m = 0; m < members_ && !resizes; ++m) check_size(t, pieces_[i][m], from, m);
      pieces_[i] = move_by_way(home.with(from), std::move(pieces_[i]), home->layout);
      if (t.impl == nullptr) {
        if (members_ > 0 && !pieces_[i][0].is_meta()) write_plain(t, pieces_[i][0]);
        continue;
      }
      for (std::size_t m = 0; m < members_; ++m) t.impl->pieces()[m].copy_(pieces_[i][m]);
    }
  }

  /// Terms of one kind become terms of another by way of what they add up to.
  Pieces move_by_way(const Spec& spec, Pieces pieces, const Layout& to) {
    if (spec->layout == to) return pieces;
    if (const PlanPointer plan = f_.state().plan(spec, to)) {
      return f_.state().move(spec, pieces, plan, reason());
    }
    const Layout reduced = without_partial(spec->layout);
    TORCH_INTERNAL_ASSERT(reduced != spec->layout, spec->layout.to_string(), " -> ",
                          to.to_string());
    const PlanPointer plan = f_.state().plan(spec, reduced);
    return move_by_way(spec.with(reduced), f_.state().move(spec, pieces, plan, reason()), to);
  }

  void check_size(const Frame::Tensor& t, const at::Tensor& piece, const Layout& layout,
                  std::size_t m) const {
    const Shape want = local_shape(layout, to_shape(t.tensor->sizes()), here_[m]);
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
    Result& result = d_.results[r];
    switch (result.kind) {
      case Result::Kind::written:
        return *f_.tensors[result.operand].tensor;
      case Result::Kind::tensor:
        return wrap_tensor(result.specs[0], results_[r], false);
      case Result::Kind::list: {
        c10::List<at::Tensor> list;
        for (std::size_t k = 0; k < result.specs.size(); ++k) {
          std::vector<at::Tensor> pieces;
          for (const Stack& s : local_results_) pieces.push_back(s[r].toListRef()[k].toTensor());
          list.push_back(wrap_tensor(result.specs[k], pieces, true));
        }
        return list;
      }
      case Result::Kind::value:
        break;
    }
    return local_results_[0][r];
  }

  at::Tensor wrap_tensor(Spec& spec, const std::vector<at::Tensor>& local, bool in_list) {
    if (!spec || (!local.empty() && !local[0].defined())) return {};
    if (first_ && !local.empty()) {
      spec = spec.with(local[0].scalar_type());
      for (std::size_t m = 0; m < members_; ++m) {
        const Shape want = local_shape(spec->layout, spec->sizes, here_[m]);
        if (local[m].sizes() == to_ref(want)) continue;
        f_.refuse(concat("its rule is wrong: it gave a piece of (", join(local[m].sizes()),
                         ") where ", spec, " has (", join(want), ")"),
                  concat("`intarsia ops check ", f_.info.base_name, "` shows where else it fails"));
      }
    }
    Pieces pieces;
    const bool is_view = f_.info.family == Family::view;
    for (const at::Tensor& p : local) pieces.push_back(is_view ? p : in_order(p, *spec));
    at::Tensor out = make_tensor(*f_.lead, spec, std::move(pieces));
    if (is_view) share_extra(f_, out, moved_.defined() ? &moved_ : nullptr, in_list);
    return out;
  }

  /// A result of an op that ran on whole tensors: replicated, as the local op made it.
  c10::IValue wrap_open(std::size_t r, const c10::Argument& declared) {
    if (declared.alias_info() != nullptr && declared.alias_info()->isWrite()) {
      std::size_t before = r;  // results are written in the order of operands
      for (const Frame::Tensor& t : f_.tensors) {
        if (t.written && before-- == 0) return *t.tensor;
      }
    }
    if (local_results_.empty()) return c10::IValue();
    const auto whole = [&](const std::vector<at::Tensor>& local) -> at::Tensor {
      if (!local[0].defined()) return {};
      const Spec spec(Layout::replicated(f_.mesh()), to_shape(local[0].sizes()),
                      to_shape(local[0].strides()), 0, local[0].scalar_type());
      return make_tensor(*f_.lead, spec, Pieces(local.begin(), local.end()));
    };
    const c10::IValue& value = local_results_[0][r];
    if (value.isTensor()) return whole(results_[r]);
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (std::size_t k = 0; k < value.toListRef().size(); ++k) {
        std::vector<at::Tensor> pieces;
        for (const Stack& s : local_results_) pieces.push_back(s[r].toListRef()[k].toTensor());
        list.push_back(whole(pieces));
      }
      return list;
    }
    return value;
  }

  Frame& f_;
  Decision& d_;
  const bool first_;
  const std::vector<Coordinate> here_;
  const std::size_t members_;
  std::vector<Pieces> pieces_;                    // by operand
  std::vector<Stack> local_results_;              // by member
  std::vector<std::vector<at::Tensor>> results_;  // by result, of those that are tensors
  at::Tensor moved_;
  std::optional<std::uint64_t> key_;  // of a random op without a rule
};

}  // namespace

void execute(Frame& f, Decision& d, bool first) { Run(f, d, first)(); }

void execute_simple(Frame& f, const Decision& d) {
  const BelowAutograd below;
  Stack& stack = f.stack;
  // The keys of the pieces, without what acts above: where the dispatcher would find the local op.
  c10::DispatchKeySet keys;
  // Arguments that leave the stack are kept until the end: they own the world.
  c10::SmallVector<c10::IValue, 4> kept;
  std::size_t operand = 0;
  bool has_lists = false;
  for (std::size_t i = 0; i < f.info.arguments.size(); ++i) {
    c10::IValue& value = stack[f.base + i];
    const ArgumentKind kind = f.info.arguments[i].kind;
    if (kind == ArgumentKind::tensor) {
      const Frame::Tensor& t = f.tensors[operand++];
      if (t.impl == nullptr) {
        if (t.given()) keys = keys | t.tensor->key_set();
        continue;
      }
      kept.push_back(std::move(value));
      const at::Tensor& piece = t.impl->pieces()[0];
      keys = keys | piece.key_set();
      value = piece;
    } else if (kind == ArgumentKind::tensor_list && !value.isNone()) {
      has_lists = true;
      const auto elements = value.toListRef();
      if (value.isTensorList()) {
        c10::List<at::Tensor> list;
        list.reserve(elements.size());
        for (std::size_t k = 0; k < elements.size(); ++k, ++operand) {
          DistributedImpl* impl = f.tensors[operand].impl;
          list.push_back(impl == nullptr ? elements[k].toTensor() : impl->pieces()[0]);
        }
        kept.push_back(std::exchange(value, c10::IValue(std::move(list))));
      } else {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(elements.size());
        for (std::size_t k = 0; k < elements.size(); ++k, ++operand) {
          DistributedImpl* impl = f.tensors[operand].impl;
          list.push_back(impl != nullptr        ? std::optional(impl->pieces()[0])
                         : elements[k].isNone() ? std::nullopt
                                                : std::optional(elements[k].toTensor()));
        }
        kept.push_back(std::exchange(value, c10::IValue(std::move(list))));
      }
    }
  }
  const c10::OperatorHandle& op = d.local_op ? *d.local_op : f.info.op;
  if (d.local_op) stack.resize(f.base + op.schema().arguments().size());
  if (!d.local_arguments.empty()) {
    for (const auto& [index, value] : d.local_arguments[0]) stack[f.base + index] = value;
  }
  if (has_lists || keys.has_any(kLazy)) {
    op.callBoxed(&stack);
  } else {
    op.redispatchBoxed(keys - kAbove, &stack);
  }
  if (f.info.in_place || f.info.hidden_writes) note_writes(f);
  const bool is_view = f.info.family == Family::view;
  for (std::size_t r = 0; r < d.results.size(); ++r) {
    c10::IValue& value = stack[f.base + r];
    const Result& result = d.results[r];
    switch (result.kind) {
      case Result::Kind::tensor: {
        at::Tensor local = std::move(value).toTensor();
        if (!local.defined()) {
          value = at::Tensor();
          break;
        }
        if (!is_view) local = in_order(std::move(local), *result.specs[0]);
        value = make_tensor(*f.lead, result.specs[0], std::move(local));
        if (is_view) share_extra(f, value.toTensor(), nullptr, false);
        break;
      }
      case Result::Kind::written: {
        // The operand was the first tensor that left the stack, or is in a list.
        const Frame::Tensor& t = f.tensors[result.operand];
        value = at::Tensor(
            c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(t.impl));
        break;
      }
      case Result::Kind::list: {
        c10::List<at::Tensor> list;
        const auto elements = value.toListRef();
        list.reserve(elements.size());
        for (std::size_t k = 0; k < elements.size(); ++k) {
          at::Tensor local = elements[k].toTensor();
          if (!is_view) local = in_order(std::move(local), *result.specs[k]);
          list.push_back(make_tensor(*f.lead, result.specs[k], std::move(local)));
          if (is_view) share_extra(f, list.get(k), nullptr, true);
        }
        value = std::move(list);
        break;
      }
      case Result::Kind::value:
        break;
    }
  }
}

namespace {

/// A tensor whose dimensions lie in memory as those of the whole op's result do.
at::Tensor with_strides(at::Tensor t, const Shape& strides) {
  const DistributedImpl& impl = impl_of(t);
  const SpecData& spec = *impl.spec();
  if (spec.strides == strides) return t;
  const Spec wanted(spec.layout, spec.sizes, strides, 0, spec.dtype);
  Pieces pieces;
  for (const at::Tensor& p : impl.pieces()) pieces.push_back(in_order(p, *wanted));
  return make_tensor(impl, wanted, std::move(pieces));
}

/// A result with memory of its own: a formula may give back an operand, or a view of one, as it was
/// given: a plain tensor, or a move that is remembered. Ranks may differ in that, as a piece that
/// was cut out shares and an empty one does not, so pieces are copied and no op is called.
at::Tensor with_own_memory(at::Tensor t, const std::vector<at::Tensor>& given) {
  const DistributedImpl& impl = impl_of(t);
  const Spec made = impl.spec().fresh(impl.spec()->layout);
  bool is_own = made == impl.spec();
  Pieces pieces = impl.pieces();
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const auto is_of = [&](const at::Tensor& operand) {
      const Pieces& others = impl_of(operand).pieces();
      return m < others.size() && pieces[m].is_alias_of(others[m]);
    };
    if (std::any_of(given.begin(), given.end(), is_of)) {
      pieces[m] = pieces[m].clone();
      is_own = false;
    }
    pieces[m] = in_order(pieces[m], *made);
  }
  return is_own ? t : make_tensor(impl, made, std::move(pieces));
}

/// A result without terms on axes where the row has none.
at::Tensor with_terms_of(at::Tensor t, const Layout& row, const Frame& f) {
  DistributedImpl& impl = impl_of(t);
  Layout layout = impl.spec()->layout;
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    if (layout.placement(a).is_partial() && !row.placement(a).is_partial()) {
      layout = layout.with(a, Placement::replicate());
    }
  }
  if (layout == impl.spec()->layout) return t;
  const PlanPointer plan = f.state().plan(impl.spec(), layout);
  TORCH_INTERNAL_ASSERT(plan, impl.spec()->layout.to_string(), " -> ", layout.to_string());
  return make_tensor(impl, impl.spec().with(layout),
                     f.state().move(impl, plan, {.op = f.info.name}));
}

/// Plain operands that a formula writes: replicated copies, brought back when it has run. So ranks
/// that are played by one process write once.
class WrittenPlain {
 public:
  at::Tensor copy_of(const Frame& f, const Decision& d, std::size_t i) {
    const at::Tensor& plain = *f.tensors[i].tensor;
    const SpecData& in = *d.in[i];
    const Spec spec(in.layout, in.sizes, contiguous_strides(in.sizes), 0, in.dtype);
    Pieces pieces;
    for (std::size_t m = 0; m < f.lead->pieces().size(); ++m) {
      pieces.push_back(plain.clone(at::MemoryFormat::Contiguous));
    }
    copies_.emplace_back(plain, make_tensor(*f.lead, spec, std::move(pieces)));
    return copies_.back().second;
  }

  void bring_back() const {
    for (const auto& [plain, copy] : copies_) {
      const Pieces& pieces = impl_of(copy).pieces();
      if (!pieces.empty()) plain.copy_(pieces[0]);
    }
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

}  // namespace

void execute_formula(Frame& f, const Decision& d) {
  const BelowAutograd below;
  WrittenPlain written_plain;
  const auto operand = [&](std::size_t i) -> c10::IValue {
    const Frame::Tensor& t = f.tensors[i];
    if (!t.given()) return c10::IValue();
    if (t.written && f.info.hidden_writes) {
      return t.impl != nullptr ? *t.tensor : written_plain.copy_of(f, d, i);
    }
    if (t.impl == nullptr && !t.tensor->unsafeGetTensorImpl()->is_wrapped_number()) {
      // All ranks pass the same: replicated, so that what is made of it is distributed too.
      const SpecData& in = *d.in[i];
      const Spec spec(Layout::replicated(f.mesh()), in.sizes, contiguous_strides(in.sizes), 0,
                      in.dtype);
      const at::Tensor piece = t.tensor->to(f.lead->world().piece_device()).contiguous();
      return make_tensor(*f.lead, spec, Pieces(f.lead->pieces().size(), piece));
    }
    if (t.impl == nullptr || d.moves.empty() || !d.moves[i]) return *t.tensor;
    return make_tensor(*t.impl, d.in[i].with(d.layouts[i]),
                       f.state().move(*t.impl, d.moves[i], {.op = f.info.name}));
  };
  std::vector<at::Tensor> given;  // those of ours
  Stack stack;
  std::size_t next = 0;
  const auto next_operand = [&] {
    c10::IValue value = operand(next++);
    if (value.isTensor() && is_ours(value.toTensor())) given.push_back(value.toTensor());
    return value;
  };
  for (std::size_t i = 0; i < f.info.arguments.size(); ++i) {
    const c10::IValue& value = f.argument(i);
    if (f.info.arguments[i].is_out) break;
    if (f.info.arguments[i].kind == ArgumentKind::tensor) {
      stack.push_back(next_operand());
    } else if (f.info.arguments[i].kind == ArgumentKind::tensor_list && !value.isNone()) {
      c10::List<at::Tensor> list;
      for (std::size_t k = 0; k < value.toListRef().size(); ++k) {
        list.push_back(next_operand().toTensor());
      }
      stack.emplace_back(std::move(list));
    } else {
      stack.push_back(value);
    }
  }
  {
    const FormulaScope scope(f.info.name);
    f.info.rule->options.formula(f.info.op, stack);
    for (std::size_t r = 0; r < d.results.size(); ++r) {
      if (!stack[r].isTensor() || !stack[r].toTensor().defined()) continue;
      if (!is_ours(stack[r].toTensor())) {
        f.refuse("its formula gave a plain tensor",
                 "make results from operands, as x.new_zeros(sizes) does and at::zeros(sizes) not");
      }
      stack[r] = with_terms_of(stack[r].toTensor(), d.out_layouts[r], f);
    }
  }
  written_plain.bring_back();
  for (std::size_t r = 0; r < d.results.size(); ++r) {
    const Result& result = d.results[r];
    if (!stack[r].isTensor() || !stack[r].toTensor().defined()) continue;
    if (result.kind == Result::Kind::written) {
      const Frame::Tensor& written = f.tensors[result.operand];
      if (written.impl == nullptr) {
        write_plain(written, stack[r].toTensor());
      } else {
        written.tensor->copy_(stack[r].toTensor());
      }
      stack[r] = *written.tensor;
    } else {
      stack[r] =
          with_strides(with_own_memory(stack[r].toTensor(), given), result.specs[0]->strides);
    }
  }
  f.finish(std::move(stack));
}

std::shared_ptr<Extra::Window> window_of(DistributedImpl& base, const at::Tensor& moved) {
  // What the snapshot shall share.
  if (base.spec()->partial) base.memory();
  const std::uint32_t version = base.is_inference() ? base.inference_writes()->load()
                                                    : base.version_counter().current_version();
  return std::make_shared<Extra::Window>(Extra::Window{base.snapshot(), moved, version});
}

void write_through(DistributedImpl& view, std::string_view op) {
  if (!view.extra() || !view.extra()->window) return;
  Extra::Window& window = *view.extra()->window;
  DistributedImpl& moved = impl_of(window.moved);
  moved.refresh();
  if (overlaps(*window.base->spec())) {
    if (view.numel() == 0) return;
    fail<ValueError>(op, kOverlaps, ": ", window.base->spec(), "; ", kOverlapsWayOut);
  }
  if (window.base->spec()->norms) view.state().settle(*window.base, {.op = op});
  const PlanPointer plan = view.state().plan(moved.spec(), window.base->spec()->layout);
  TORCH_INTERNAL_ASSERT(plan);
  const Pieces home = view.state().move(moved.spec(), moved.pieces(), plan, {.op = op});
  for (std::size_t m = 0; m < home.size(); ++m) window.base->pieces()[m].copy_(home[m]);
  view.state().note_write(*window.base);
  // ATen counts this write once we return.
  window.version = window.base->is_inference()
                       ? window.base->inference_writes()->load()
                       : window.base->version_counter().current_version() + 1;
  write_through(*window.base, op);
}

}  // namespace intarsia
