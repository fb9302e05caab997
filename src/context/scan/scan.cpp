#include "intarsia/scan.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/hash.h"
#include "base/text.h"
#include "context/scan/parts.h"
#include "context/scan/states.h"
#include "intarsia/error.h"
#include "intarsia/plan.h"
#include "intarsia/tensor.h"
#include "tensor/call/call_check.h"
#include "tensor/call/frame.h"
#include "tensor/core/places.h"
#include "tensor/core/translating.h"
#include "tensor/move/state.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

using context::Runs;
using context::ScanPart;
using context::ScanRuns;
using context::StateRows;
using context::StatesBefore;
using context::StateSender;
using context::StateShape;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::string_view kScan = "scan";

constexpr std::array<std::pair<ScanSchedule, std::string_view>, 3> kSchedules{{
    {ScanSchedule::automatic, "auto"},
    {ScanSchedule::gather, "gather"},
    {ScanSchedule::doubling, "doubling"},
}};

/// What autograd's function needs besides tensors. `parts` and `states` are made by forward.
struct Scan : torch::CustomClassHolder {
  ScanLayer layer;
  std::int64_t dim = 1;
  ScanSchedule schedule = ScanSchedule::gather;
  std::size_t along = 0;             // how many of the inputs go along the sequence
  std::vector<bool> wanted;          // of which inputs gradients are wanted
  std::shared_ptr<World> world;      // none for plain tensors
  std::vector<Layout> layouts;       // of the inputs
  std::vector<Layout> grad_layouts;  // of their gradients
  std::vector<Shape> sizes;          // of the inputs
  std::vector<at::ScalarType> dtypes;
  std::vector<Coordinate> hosted;
  std::vector<Runs> held;  // by hosted rank
  SequenceOrder order;
  ScanRuns runs;
  StateSender sender;
  std::vector<ScanPart> parts;  // by hosted rank
  std::optional<StatesBefore> states;

  bool wants_gradients() const {
    return std::find(wanted.begin(), wanted.end(), true) != wanted.end();
  }
  Pieces pieces(const at::Tensor& t) const { return world ? impl_of(t).pieces() : Pieces{t}; }
  at::Tensor tensor(Pieces pieces, const Layout& layout, const Shape& sizes,
                    at::ScalarType dtype) const {
    if (!world) return pieces[0];
    return make_tensor(world, TensorState::of(*world), Spec(layout, sizes, dtype),
                       std::move(pieces));
  }
  at::Tensor output(Pieces pieces, const Shape& sizes, at::ScalarType dtype) const {
    return tensor(std::move(pieces), world ? layouts[0] : Layout(), sizes, dtype);
  }
  at::Tensor grad(std::size_t input, Pieces pieces) const {
    for (at::Tensor& piece : pieces) piece = piece.to(dtypes[input]).contiguous();
    return tensor(std::move(pieces), world ? grad_layouts[input] : Layout(), sizes[input],
                  dtypes[input]);
  }
};
using ScanPtr = c10::intrusive_ptr<Scan>;

/// Ops on pieces, below what acts on distributed tensors; with autograd where graphs are wanted.
struct OnPieces {
  explicit OnPieces(bool graphs) : grad_mode(graphs) {}
  c10::impl::ExcludeDispatchKeyGuard counted{c10::DispatchKeySet(kPieces)};
  at::AutoGradMode grad_mode;
};

void check_alike(const Scan& call, const StateShape& shape) {
  if (!call.world || !call.world->guarded() || !call.sender.sends()) return;
  std::vector<std::string> sizes;
  for (const auto& each : shape.sizes) sizes.push_back(concat("[", join(each), "]"));
  const std::string text = concat(join(sizes), " ", to_string(call.schedule));
  const Mesh group = call.sender.mesh.slice(call.sender.axes, call.world->rank());
  call.world->check_value(group, "the sizes of states and the schedule of scan", hash_text(text),
                          concat("here they are ", text, "; run the same layer on all ranks"));
}

/// The cheaper schedule for states of so many bytes: gather sends them to all others at once,
/// doubling to 1 + log2(ranks) others, one after the other.
ScanSchedule cheapest(const Scan& call, std::int64_t bytes) {
  if (!call.sender.sends() || !call.order.is_contiguous()) return ScanSchedule::gather;
  const Mesh& mesh = call.sender.mesh;
  AxisList axes;
  for (const std::string& name : call.sender.axes) {
    axes.push_back(static_cast<std::int8_t>(mesh.axis_index(name)));
  }
  const Link& link = call.world->plans().topology().link(mesh, axes);
  const std::size_t ranks = call.runs.counts.size();
  std::size_t steps = 1;
  for (std::size_t distance = 1; distance + 1 < ranks; distance *= 2) ++steps;
  const double each = static_cast<double>(bytes) / link.bandwidth + link.latency;
  const double gather = link.overhead + static_cast<double>(ranks - 1) * each;
  const double doubling = static_cast<double>(steps) * (link.overhead + each);
  return gather <= doubling ? ScanSchedule::gather : ScanSchedule::doubling;
}

ScanPart& add_part(Scan& call, const std::vector<at::Tensor>& pieces, const Runs& runs) {
  const auto middle = pieces.begin() + static_cast<std::ptrdiff_t>(call.along);
  return call.parts.emplace_back(call.layer, call.dim,
                                 std::vector<at::Tensor>(pieces.begin(), middle),
                                 std::vector<at::Tensor>(middle, pieces.end()), call.wanted, runs);
}

/// Pieces without positions, as the first rank has: a process outside of the mesh runs the layer on
/// them to learn what it gives.
std::vector<at::Tensor> stand_ins(const Scan& call, at::TensorList inputs) {
  std::vector<at::Tensor> out;
  const Coordinate first(call.sender.mesh.axes(), 0);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Shape sizes = local_shape(call.layouts[i], Shape(inputs[i].sizes()), first);
    if (i < call.along) sizes[static_cast<std::size_t>(call.dim)] = 0;
    out.push_back(at::zeros(at::IntArrayRef(sizes.begin(), sizes.size()),
                            at::device(call.world->device()).dtype(inputs[i].scalar_type())));
  }
  return out;
}

/// The states of all runs before those of each hosted rank.
StateRows states_before(Scan& call, const std::vector<Pieces>& pieces) {
  StateRows own;
  std::vector<StateShape> shapes;
  std::int64_t bytes = 0;
  for (std::size_t m = 0; m < call.held.size(); ++m) {
    std::vector<at::Tensor> mine;
    for (const Pieces& each : pieces) mine.push_back(each[m]);
    ScanPart& part = add_part(call, mine, call.held[m]);
    const std::vector<ScanState>& states = part.make_states();
    shapes.emplace_back(states[0]);
    std::vector<at::Tensor> rows;
    for (const ScanState& state : states) rows.push_back(shapes[m].packed(state).detach());
    own.push_back(part.is_empty() ? rows[0].narrow(0, 0, 0) : at::cat(rows));
    bytes = std::max(bytes, static_cast<std::int64_t>(rows[0].nbytes()));
  }
  if (call.schedule == ScanSchedule::automatic) call.schedule = cheapest(call, bytes);
  if (!shapes.empty()) check_alike(call, shapes[0]);
  call.states.emplace(call.sender, call.runs, shapes, call.layer, call.schedule);
  return call.states->forward(own);
}

/// The global sizes of an output, by its piece at a coordinate: it is sharded where the first input
/// is.
Shape output_sizes(const Scan& call, const at::Tensor& piece, const at::Tensor& first,
                   const Coordinate& at) {
  Shape out(piece.sizes());
  if (!call.world) return out;
  const Layout& layout = call.layouts[0];
  if (layout.least_dims() > out.size()) {
    fail<ValueError>(kScan, "`outputs` gave ", describe(piece), ", which has no dimension ",
                     layout.least_dims() - 1, ", and is to be laid out as ", layout);
  }
  const Shape like = local_shape(layout, Shape(first.sizes()), at);
  for (std::size_t d = 0; d < out.size(); ++d) {
    const AxisList axes = layout.axes_of(static_cast<int>(d));
    if (axes.empty()) continue;
    const auto dim = static_cast<std::int64_t>(d);
    if (dim == call.dim || (d < like.size() && out[d] == like[d])) {
      out[d] = first.size(dim);
    } else {
      for (const std::int8_t a : axes) out[d] *= layout.mesh().size(static_cast<std::size_t>(a));
    }
  }
  return out;
}

class ScanFunction : public torch::autograd::Function<ScanFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, at::TensorList inputs, const ScanPtr& call) {
    const OnPieces on_pieces(call->wants_gradients());
    const CallCheck only_pieces([](const Frame& f) {
      f.refuse(
          "the layer of a scan computes with pieces, and this distributed tensor is not among "
          "its arguments",
          "pass it to scan, as one of `others`");
    });
    std::vector<Pieces> pieces;
    for (const at::Tensor& t : inputs) pieces.push_back(call->pieces(t));
    const StateRows befores = states_before(*call, pieces);
    const bool is_outside = call->held.empty();
    if (is_outside) add_part(*call, stand_ins(*call, inputs), {}).make_states();
    std::vector<Pieces> outputs;
    for (std::size_t m = 0; m < call->parts.size(); ++m) {
      const auto made = is_outside
                            ? call->parts[m].make_outputs(StateShape({}), {})
                            : call->parts[m].make_outputs(call->states->shape(m), befores[m]);
      outputs.resize(made.size());
      for (std::size_t i = 0; i < made.size(); ++i) outputs[i].push_back(made[i].contiguous());
    }
    const Coordinate at =
        is_outside || !call->world ? Coordinate(call->sender.mesh.axes(), 0) : call->hosted[0];
    variable_list out;
    for (Pieces& each : outputs) {
      const at::Tensor piece = each[0];
      const Shape sizes = output_sizes(*call, piece, inputs[0], at);
      if (is_outside) each.clear();
      out.push_back(call->output(std::move(each), sizes, piece.scalar_type()));
    }
    if (is_outside || !call->wants_gradients()) call->parts.clear();
    ctx->set_materialize_grads(false);
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list out;
    translating([&] { out = gradients(ctx, grads); });
    return out;
  }

 private:
  static variable_list gradients(AutogradContext* ctx, const variable_list& given) {
    const auto call = c10::static_intrusive_pointer_cast<Scan>(ctx->saved_data["call"].toCapsule());
    if (at::GradMode::is_enabled()) {
      fail<UnsupportedError>(kScan, "the gradient of what it made of ", call->sender.text,
                             " is asked for with create_graph, and scan is differentiable once; "
                             "call backward or grad without it");
    }
    std::vector<std::vector<at::Tensor>> above(call->parts.size());  // by hosted rank
    for (const at::Tensor& grad : given) {
      at::Tensor laid_out = grad;
      if (grad.defined() && call->world) {
        laid_out = has_layout(grad) ? redistribute(grad, call->layouts[0])
                                    : distribute(grad, call->layouts[0], *call->world);
      }
      for (std::size_t m = 0; m < above.size(); ++m) {
        above[m].push_back(grad.defined() ? call->pieces(laid_out)[m] : at::Tensor());
      }
    }
    const OnPieces on_pieces(false);
    StateRows rows;
    for (std::size_t m = 0; m < call->parts.size(); ++m) {
      rows.push_back(call->parts[m].before_grads(call->states->shape(m), above[m]));
    }
    const StateRows of_states = call->states->backward(rows);
    std::vector<Pieces> pieces(call->wanted.size());
    for (std::size_t m = 0; m < call->parts.size(); ++m) {
      const auto mine = call->parts[m].input_grads(call->states->shape(m), of_states[m]);
      for (std::size_t i = 0; i < mine.size(); ++i) pieces[i].push_back(mine[i]);
    }
    variable_list out;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      out.emplace_back();
      if (call->wanted[i]) out[i] = call->grad(i, std::move(pieces[i]));
    }
    out.emplace_back();
    return out;
  }
};

// ---- layouts -----------------------------------------------------------------------------------

bool has_size(const at::Tensor& t, std::int64_t dim, std::int64_t size) {
  return dim < t.dim() && t.size(dim) == size;
}

/// The layout of the first input in which it can be scanned: shards, and nothing in blocks along
/// the sequence.
Layout scannable(const Layout& layout, std::int64_t dim) {
  Layout out = layout;
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    const Placement& p = layout.placement(a);
    if (p.is_partial()) out = out.with(a, Placement::replicate());
    if (p.is_shard(static_cast<int>(dim)) && p.is_strided()) {
      out = out.with(a, Placement::shard(static_cast<int>(dim)));
    }
  }
  return out;
}

/// Another tensor along the sequence: sharded in the dimensions in which the first is, where it has
/// these.
Layout alongside(const at::Tensor& t, const at::Tensor& first, const Layout& layout) {
  Layout out = layout;
  for (std::size_t a = 0; a < layout.mesh().axes(); ++a) {
    const Placement& p = layout.placement(a);
    if (p.is_shard() &&
        (p.dim() >= t.dim() || (t.size(p.dim()) == 1 && first.size(p.dim()) != 1))) {
      out = out.with(a, Placement::replicate());
    }
  }
  return out;
}

/// A tensor that does not go along the sequence, on the mesh of the first: as it is, but the same
/// on all ranks along it.
Layout beside(const at::Tensor& t, const Layout& first, std::int64_t dim) {
  Layout out = has_layout(t) ? layout_in_use(t) : Layout::replicated(first.mesh());
  for (std::size_t a = 0; a < first.mesh().axes(); ++a) {
    const bool is_along = first.placement(a).is_shard(static_cast<int>(dim));
    if (is_along || out.placement(a).is_partial()) out = out.with(a, Placement::replicate());
  }
  return out;
}

/// Ranks that compute other elements of the outputs have parts of the sum; others the same.
Layout grad_layout(const Layout& input, const Layout& first) {
  Layout out = input;
  for (std::size_t a = 0; a < input.mesh().axes(); ++a) {
    if (input.placement(a).is_replicate() && first.placement(a).is_shard()) {
      out = out.with(a, Placement::partial());
    }
  }
  return out;
}

// ---- a call ------------------------------------------------------------------------------------

/// The runs that stand at some places, in the order of positions.
void add_runs(ScanRuns& runs, const SequenceOrder& order, Range places) {
  const std::size_t place = runs.counts.size();
  const std::vector<Range> held = order.runs(places);
  for (std::size_t i = 0; i < held.size(); ++i) runs.all.push_back({held[i], place, i});
  runs.counts.push_back(held.size());
}

void sort_runs(ScanRuns& runs) {
  std::sort(runs.all.begin(), runs.all.end(),
            [](const auto& a, const auto& b) { return a.positions.begin < b.positions.begin; });
}

/// The one run of places along the sequence that a rank holds. REQUIRES: no shards in blocks.
Range places_at(const Layout& layout, const Shape& sizes, std::int64_t dim, const Coordinate& at) {
  const Boxes held = boxes(layout, sizes, at);
  const auto runs = held.runs(static_cast<std::size_t>(dim));
  return runs.empty() ? Range{} : runs[0];
}

void check_inputs(const std::vector<at::Tensor>& along, const ScanOptions& options) {
  if (along.empty())
    fail<ValueError>(kScan, "`along` has ", along.size(),
                     " tensors; pass what has the sequence in dimension ", options.dim);
  const at::Tensor& first = along[0];
  if (options.dim < 0 || options.dim >= first.dim()) {
    fail<ValueError>(kScan, "dim is ", options.dim, ", and ", describe(first), " has ", first.dim(),
                     " dimensions; count from 0");
  }
  for (const at::Tensor& t : along) {
    if (has_size(t, options.dim, first.size(options.dim))) continue;
    fail<ValueError>(kScan, describe(t), " goes along the sequence of ", describe(first),
                     ", and has another size in dimension ", options.dim,
                     "; pass what does not go along as `others`");
  }
  options.order.check(kScan, first.size(options.dim));
  if (options.schedule == ScanSchedule::doubling && !options.order.is_contiguous()) {
    fail<ValueError>(kScan,
                     "the schedule doubling passes states from rank to rank, and in the order ",
                     options.order, " a rank may hold several runs; use gather");
  }
}

/// Lays out the inputs, and says what each hosted rank has.
void lay_out(Scan& call, std::vector<at::Tensor>& inputs, World& world, const Mesh& mesh) {
  const Layout first = scannable(
      has_layout(inputs[0]) ? layout_in_use(inputs[0]) : Layout::replicated(mesh), call.dim);
  const at::Tensor first_input = inputs[0];
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (has_layout(inputs[i]) && layout_in_use(inputs[i]).mesh() != mesh) {
      fail<ValueError>(kScan, "inputs are on one mesh, not on ", mesh, " and ",
                       layout_in_use(inputs[i]).mesh());
    }
    const Layout layout = i == 0           ? first
                          : i < call.along ? alongside(inputs[i], first_input, first)
                                           : beside(inputs[i], first, call.dim);
    inputs[i] = has_layout(inputs[i]) ? redistribute(inputs[i], layout)
                                      : distribute(inputs[i], layout, world);
    call.layouts.push_back(layout);
    call.grad_layouts.push_back(grad_layout(layout, first));
  }
  call.world = world.shared_from_this();
  const AxisList axes = first.axes_of(static_cast<int>(call.dim));
  const Places places(mesh, axes);
  call.sender = {&world, mesh, places.names(), describe(inputs[0])};
  const Shape sizes(first_input.sizes());
  for (std::size_t i = 0; i < places.count(); ++i) {
    add_runs(call.runs, call.order, places_at(first, sizes, call.dim, places.at(i)));
  }
  for (const Coordinate& at : hosted_coordinates(world, mesh)) {
    call.hosted.push_back(at);
    call.runs.members.push_back(places.of(at));
    call.held.push_back(context::runs_at(call.order, places_at(first, sizes, call.dim, at)));
  }
}

std::vector<at::Tensor> run(const ScanLayer& layer, const std::vector<at::Tensor>& along,
                            const std::vector<at::Tensor>& others, const ScanOptions& options) {
  check_inputs(along, options);
  const auto call = c10::make_intrusive<Scan>();
  call->layer = layer;
  call->dim = options.dim;
  call->schedule = options.schedule;
  call->order = options.order;
  call->along = along.size();
  std::vector<at::Tensor> inputs = along;
  inputs.insert(inputs.end(), others.begin(), others.end());
  const auto ours = std::find_if(inputs.begin(), inputs.end(), has_layout);
  if (ours != inputs.end()) {
    lay_out(*call, inputs, world_of(*ours), layout_in_use(*ours).mesh());
  } else {
    const Range all{0, inputs[0].size(call->dim)};
    call->sender.text = describe(inputs[0]);
    add_runs(call->runs, call->order, all);
    call->runs.members.push_back(0);
    call->held.push_back(context::runs_at(call->order, all));
  }
  sort_runs(call->runs);
  for (const at::Tensor& t : inputs) {
    call->wanted.push_back(t.requires_grad() && at::GradMode::is_enabled());
    call->sizes.emplace_back(t.sizes());
    call->dtypes.push_back(t.scalar_type());
  }
  return ScanFunction::apply(at::TensorList(inputs), call);
}

}  // namespace

std::string to_string(ScanSchedule schedule) {
  return std::string(kSchedules[static_cast<std::size_t>(schedule)].second);
}

ScanSchedule parse_scan_schedule(std::string_view text) {
  for (const auto& [schedule, name] : kSchedules) {
    if (name == text) return schedule;
  }
  fail<ValueError>(kScan, "there is no schedule '", text, "'; there are auto, gather and doubling");
}

std::vector<at::Tensor> scan(const ScanLayer& layer, const std::vector<at::Tensor>& along,
                             const std::vector<at::Tensor>& others, const ScanOptions& options) {
  std::vector<at::Tensor> out;
  translating([&] { out = run(layer, along, others, options); });
  return out;
}

}  // namespace intarsia
