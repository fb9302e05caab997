#include "intarsia/attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "base/hash.h"
#include "base/text.h"
#include "context/attend/choose.h"
#include "context/attend/exchange.h"
#include "context/attend/layouts.h"
#include "context/attend/local.h"
#include "intarsia/communication.h"
#include "intarsia/error.h"
#include "intarsia/plan.h"
#include "intarsia/tensor.h"
#include "tensor/core/places.h"
#include "tensor/core/translating.h"
#include "tensor/move/state.h"
#include "tensor/random/key.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

using context::Backward;
using context::Exchange;
using context::Forward;
using context::Held;
using context::KeyHeads;
using context::KeyValue;
using context::Layouts;
using context::Runs;
using context::Setting;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::string_view kWhere = "attention";
constexpr std::size_t kMostShown = 120;  // letters of a description, in messages

/// One call: all that forward and backward share but tensors.
struct Attention : torch::CustomClassHolder {
  Setting setting;
  std::int64_t key_size = 0;
  std::int64_t value_size = 0;
  bool values_in_keys = false;   // they are the first numbers of each key, and travel as these
  std::shared_ptr<World> world;  // none for plain tensors
  Layout query_layout;
  Layout key_layout;
  std::vector<Held> held;       // by hosted rank
  std::vector<KeyHeads> heads;  // likewise
  std::vector<Runs> key_runs;   // likewise, where no keys travel
  std::optional<Exchange> exchange;

  void take(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
            const AttentionMask& mask, const AttentionOptions& options);
  Pieces pieces(const at::Tensor& t) const { return world ? impl_of(t).pieces() : Pieces{t}; }

  at::Tensor tensor(Pieces pieces, const Layout& layout, std::span<const std::int64_t> sizes,
                    at::ScalarType dtype) const {
    if (!world) return pieces[0];
    const Spec spec(layout, Shape(sizes), dtype);
    return make_tensor(world, TensorState::of(*world), spec, std::move(pieces));
  }

  KeyValue apart(const at::Tensor& both) const {
    return {both.narrow(3, 0, key_size), both.narrow(3, values_in_keys ? 0 : key_size, value_size)};
  }
  /// The reverse, for gradients.
  at::Tensor together(const KeyValue& grads) const {
    if (!values_in_keys) return at::cat({grads.key, grads.value}, 3);
    at::Tensor out = grads.key.clone();
    out.narrow(3, 0, value_size).add_(grads.value);
    return out;
  }

  /// Keys and values of the heads that each hosted rank uses, as one tensor.
  Pieces joined(const at::Tensor& key, const at::Tensor& value) const {
    const Pieces keys = pieces(key);
    const Pieces values = values_in_keys ? Pieces() : pieces(value);
    Pieces out;
    for (std::size_t m = 0; m < keys.size(); ++m) {
      const at::Tensor mine = heads[m].of(keys[m]);
      out.push_back(values_in_keys ? mine.contiguous()
                                   : at::cat({mine, heads[m].of(values[m])}, 3));
    }
    return out;
  }
};
using AttentionPtr = c10::intrusive_ptr<Attention>;

/// What the rank at a coordinate holds. REQUIRES: no shards in blocks.
Box held_at(const Layout& layout, const at::Tensor& tensor, const Coordinate& at) {
  const Boxes held = boxes(layout, tensor.sizes(), at);
  Box out;
  for (std::size_t d = 0; d < held.dims(); ++d) {
    out.push_back(held.runs(d).empty() ? Range{} : held.runs(d)[0]);
  }
  return out;
}

/// What a rank holds of queries and keys.
void add_rank(Attention& call, const Box& queries, const Box& keys, const SequenceOrder& order,
              const SequenceOrder& key_order) {
  const Held held{queries[0], queries[1], context::runs_at(order, queries[2])};
  call.heads.emplace_back(call.setting, held.heads, keys[1]);
  call.key_runs.push_back(context::runs_at(key_order, keys[2]));
  call.held.push_back(held);
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& query, const at::Tensor& key,
                            const std::optional<at::Tensor>& given_value,
                            const AttentionPtr& call) {
    const BelowAutograd below;
    const at::Tensor value = given_value.value_or(at::Tensor());
    const Pieces queries = call->pieces(query);
    const Pieces keys = call->joined(key, value);
    std::vector<Forward> parts;
    parts.reserve(queries.size());
    for (std::size_t m = 0; m < queries.size(); ++m) {
      parts.emplace_back(call->setting, call->held[m], queries[m], call->value_size);
    }
    const auto use = [&](std::size_t m, const at::Tensor& both, const Runs& runs) {
      parts[m].add(call->apart(both), runs);
    };
    if (call->exchange) {
      call->exchange->forward(keys, use);
    } else {
      for (std::size_t m = 0; m < keys.size(); ++m) use(m, keys[m], call->key_runs[m]);
    }
    Pieces outs;
    Pieces sums;
    for (const Forward& each : parts) {
      outs.push_back(each.out());
      sums.push_back(each.logsumexp());
    }
    std::vector<std::int64_t> sizes = query.sizes().vec();
    sizes[3] = call->value_size;
    const at::Tensor out = call->tensor(outs, call->query_layout, sizes, query.scalar_type());
    sizes.pop_back();
    const at::Tensor sum =
        call->tensor(sums, call->query_layout, sizes, context::accumulating(query.scalar_type()));
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({query, key, value, out, sum});
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {{}, {}, {}, {}};
    variable_list out;
    translating([&] { out = gradients(ctx, grads[0]); });
    return out;
  }

 private:
  static variable_list gradients(AutogradContext* ctx, const at::Tensor& given) {
    if (at::GradMode::is_enabled()) {
      fail<UnsupportedError>(kWhere, "the gradient of ", describe(given),
                             " is asked for with create_graph, and attention is differentiable "
                             "once; call backward or grad without it");
    }
    const auto call =
        c10::static_intrusive_pointer_cast<Attention>(ctx->saved_data["call"].toCapsule());
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& query = saved[0];
    const at::Tensor& key = saved[1];
    const at::Tensor& value = saved[2];
    at::Tensor grad = given;
    if (call->world) {
      grad = has_layout(given) ? redistribute(given, call->query_layout)
                               : distribute(given, call->query_layout, *call->world);
    }
    const BelowAutograd below;
    const Pieces queries = call->pieces(query);
    const Pieces outs = call->pieces(saved[3]);
    const Pieces sums = call->pieces(saved[4]);
    const Pieces above = call->pieces(grad);
    const Pieces keys = call->joined(key, value);
    std::vector<Backward> parts;
    parts.reserve(queries.size());
    for (std::size_t m = 0; m < queries.size(); ++m) {
      parts.emplace_back(call->setting, call->held[m], queries[m], outs[m], sums[m], above[m]);
    }
    const auto use = [&](std::size_t m, const at::Tensor& both, const Runs& runs) {
      return call->together(parts[m].add(call->apart(both), runs));
    };
    Pieces of_keys;
    if (call->exchange) {
      of_keys = call->exchange->backward(keys, use);
    } else {
      for (std::size_t m = 0; m < keys.size(); ++m) {
        of_keys.push_back(use(m, keys[m], call->key_runs[m]));
      }
    }
    Pieces query_grads;
    Pieces key_grads;
    Pieces value_grads;
    for (std::size_t m = 0; m < queries.size(); ++m) {
      query_grads.push_back(parts[m].query_grad().to(query.scalar_type()));
      const at::Tensor both = call->heads[m].back(of_keys[m]).to(key.scalar_type());
      key_grads.push_back(both.narrow(3, 0, call->key_size).contiguous());
      if (call->values_in_keys) continue;
      value_grads.push_back(both.narrow(3, call->key_size, call->value_size).contiguous());
    }
    const Layout key_grad_layout =
        call->world ? context::key_grad_layout(call->query_layout, call->key_layout) : Layout();
    const auto of = [&](Pieces& grads, const Layout& layout, const at::Tensor& t) {
      return call->tensor(std::move(grads), layout, t.sizes(), t.scalar_type());
    };
    return {of(query_grads, call->query_layout, query), of(key_grads, key_grad_layout, key),
            call->values_in_keys ? at::Tensor() : of(value_grads, key_grad_layout, value),
            at::Tensor()};
  }
};

void check_sizes(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const auto text = [](const at::Tensor& t) { return concat("[", join(t.sizes()), "]"); };
  const auto refuse = [&](std::string_view why) {
    fail<ValueError>(kWhere, why, ": query ", text(query), ", key ", text(key), ", value ",
                     text(value), "; they are [batch, heads, sequence, head size]");
  };
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) refuse("tensors have 4 dimensions");
  if (key.size(0) != query.size(0) || value.size(0) != query.size(0)) refuse("batches differ");
  if (key.size(1) != value.size(1) || key.size(2) != value.size(2)) {
    refuse("keys and values differ in heads or sequence");
  }
  if (key.size(3) != query.size(3)) refuse("query and key have other head sizes");
  if (key.size(1) == 0 || query.size(1) % key.size(1) != 0) {
    refuse("heads of the query are no multiple of those of the key");
  }
  const auto type = query.scalar_type();
  if (key.scalar_type() != type || value.scalar_type() != type || !at::isFloatingType(type)) {
    fail<ValueError>(kWhere, "query, key and value have one floating dtype, not ",
                     at::toString(type), ", ", at::toString(key.scalar_type()), " and ",
                     at::toString(value.scalar_type()));
  }
}

/// The values, also where they are the first numbers of the keys.
at::Tensor values_of(const at::Tensor& key, const at::Tensor& value,
                     const AttentionOptions& options) {
  if (options.value_in_key == 0) return value;
  if (value.defined() || key.dim() != 4 || options.value_in_key < 0 ||
      options.value_in_key > key.size(3)) {
    fail<ValueError>(kWhere, "value_in_key is ", options.value_in_key,
                     ", so values are that many of the ", key.size(-1),
                     " numbers of each key; pass no values, and not more than there are");
  }
  return key.detach().narrow(3, 0, options.value_in_key);
}

Setting setting_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                   const AttentionMask& mask, const AttentionOptions& options) {
  check_sizes(query, key, value);
  mask.check(kWhere, query.size(0), query.size(2), key.size(2));
  options.order.check(kWhere, query.size(2));
  options.key_order.value_or(options.order).check(kWhere, key.size(2));
  if (options.dropout < 0 || options.dropout > 1) {
    fail<ValueError>(kWhere, "dropout is ", options.dropout, "; it is a probability");
  }
  if (options.slopes.defined() && (has_layout(options.slopes) || options.slopes.dim() != 1 ||
                                   options.slopes.size(0) != query.size(1))) {
    fail<ValueError>(kWhere, "slopes are a plain tensor with one number for each of ",
                     query.size(1), " heads, not ", describe(options.slopes));
  }
  return {.mask = mask,
          .kernel = options.kernel
                        ? *options.kernel
                        : attention_kernel(query.device(), query.scalar_type(), query.size(3),
                                           value.size(3), options.dropout > 0),
          .scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(3)))),
          .dropout = options.dropout,
          .slopes = options.slopes,
          .batch = query.size(0),
          .heads = query.size(1),
          .key_heads = key.size(1),
          .queries = query.size(2),
          .keys = key.size(2)};
}

void Attention::take(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionMask& mask, const AttentionOptions& options) {
  const at::Tensor values = values_of(key, value, options);
  setting = setting_of(query, key, values, mask, options);
  key_size = key.size(3);
  value_size = values.size(3);
  values_in_keys = options.value_in_key > 0;
}

std::optional<at::Tensor> given(const at::Tensor& value) {
  return value.defined() ? std::optional(value) : std::nullopt;
}

at::Tensor plain_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const AttentionMask& mask, const AttentionOptions& options) {
  const auto call = c10::make_intrusive<Attention>();
  call->take(query, key, value, mask, options);
  if (options.dropout > 0) call->setting.dropout_key = next_plain_key();
  const auto all = [](const at::Tensor& t) {
    Box out;
    for (const std::int64_t size : t.sizes()) out.push_back({0, size});
    return out;
  };
  add_rank(*call, all(query), all(key), options.order, options.key_order.value_or(options.order));
  return AttentionFunction::apply(query, key, given(value), call);
}

/// Ranks that describe the call differently would compute with other keys than the ones that come.
void check_same(World& world, const Mesh& mesh, const Setting& setting,
                const AttentionOptions& options, const AttentionSchedule& schedule) {
  if (!world.guarded()) return;
  const std::string text = concat(options.order, " ", options.key_order.value_or(options.order),
                                  " ", setting.scale, " ", setting.dropout, " ", schedule);
  std::string shown = text.size() > kMostShown ? text.substr(0, kMostShown) + "..." : text;
  world.check_value(mesh, "the mask, order, scale, dropout and schedule of attention",
                    hash_mix(hash_text(text), setting.mask.hash()),
                    concat("here they are ", setting.mask.short_text(), " ", shown,
                           "; pass the same on all ranks of the mesh"));
}

/// The tensors of a call, all of them distributed, and what they say.
struct Operands {
  at::Tensor query, key, value;  // no value where values are in keys
  World* world = nullptr;        // none if all are plain
  Mesh mesh;

  Operands(at::Tensor q, at::Tensor k, at::Tensor v)
      : query(std::move(q)), key(std::move(k)), value(std::move(v)) {
    const std::array<at::Tensor*, 3> all{&query, &key, &value};
    const auto ours = std::find_if(all.begin(), all.end(),
                                   [](auto* t) { return t->defined() && has_layout(*t); });
    if (ours == all.end()) return;
    world = &world_of(**ours);
    mesh = layout_in_use(**ours).mesh();
    for (at::Tensor* t : all) {
      if (t->defined() && !has_layout(*t)) *t = distribute(*t, Layout::replicated(mesh), *world);
    }
  }

  bool want_gradients() const {
    return at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() ||
                                          (value.defined() && value.requires_grad()));
  }

  Layouts layouts(const Attention& call, const AttentionSchedule& schedule) const {
    return context::layouts_for(layout_in_use(query), layout_in_use(key),
                                layout_in_use(value.defined() ? value : key), call.setting.heads,
                                call.setting.key_heads, schedule);
  }

  context::Sizes sizes(const Attention& call) const {
    return {.batch = call.setting.batch,
            .heads = call.setting.heads,
            .key_heads = call.setting.key_heads,
            .queries = call.setting.queries,
            .keys = call.setting.keys,
            .size = call.key_size,
            .value_size = call.value_size,
            .sent_value_size = call.values_in_keys ? 0 : call.value_size,
            .element_bytes = static_cast<std::int64_t>(key.element_size()),
            .gradients = want_gradients()};
  }
};

at::Tensor attend(Operands in, const AttentionMask& mask, const AttentionOptions& options) {
  if (in.world == nullptr) return plain_attention(in.query, in.key, in.value, mask, options);
  World& world = *in.world;
  const auto call = c10::make_intrusive<Attention>();
  call->take(in.query, in.key, in.value, mask, options);
  Setting& setting = call->setting;
  call->world = world.shared_from_this();
  const SequenceOrder key_order = options.key_order.value_or(options.order);
  AttentionSchedule schedule = options.schedule;
  const Layouts given_layouts = in.layouts(*call, {});
  if (!given_layouts.key.axes_of(2).empty()) {
    in.layouts(*call, schedule);  // refuses what is asked for, if that cannot be
    schedule = context::chosen_schedule(world, schedule, given_layouts.result, in.sizes(*call),
                                        mask, options.order, key_order);
  }
  const Layouts layouts = in.layouts(*call, schedule);
  check_same(world, in.mesh, setting, options, schedule);
  if (options.dropout > 0) {
    setting.dropout_key = next_key(TensorState::of(world));
    check_key(world, in.mesh, setting.dropout_key);
  }
  const at::Tensor query = redistribute(in.query, layouts.query);
  const at::Tensor key = redistribute(in.key, layouts.key);
  std::optional<at::Tensor> value = given(in.value);
  if (value) value = redistribute(*value, layouts.key);
  call->query_layout = layouts.query;
  call->key_layout = layouts.key;
  for (const Coordinate& at : hosted_coordinates(world, in.mesh)) {
    add_rank(*call, held_at(layouts.query, query, at), held_at(layouts.key, key, at), options.order,
             key_order);
  }
  const AxisList axes = layouts.key.axes_of(2);
  if (!axes.empty()) {
    Shape sizes(key.sizes());
    if (!call->values_in_keys) sizes[3] += call->value_size;
    const Spec both(layouts.key, sizes, key.scalar_type());
    const Places places(in.mesh, axes);
    call->exchange.emplace(world, both, key_order, schedule.keys, [&](std::size_t place) {
      const Coordinate at = places.at(place);
      const Runs queries = context::runs_at(options.order, held_at(layouts.query, query, at)[2]);
      return context::places_needed(mask, queries, key_order, setting.keys,
                                    held_at(layouts.key, key, at)[2]);
    });
  }
  return redistribute(AttentionFunction::apply(query, key, value, call), layouts.result);
}

}  // namespace

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionMask& mask, const AttentionOptions& options) {
  return attend({query, key, value}, mask, options);
}

std::vector<AttentionCost> attention_costs(const at::Tensor& query, const at::Tensor& key,
                                           const at::Tensor& value, const AttentionMask& mask,
                                           const AttentionOptions& options) {
  const Operands in(query, key, value);
  if (in.world == nullptr) return {};
  Attention call;
  call.take(in.query, in.key, in.value, mask, options);
  const Layouts layouts = in.layouts(call, {});
  if (layouts.key.axes_of(2).empty()) return {};
  auto out = context::schedule_costs(layouts.result, in.sizes(call), mask, options.order,
                                     options.key_order.value_or(options.order),
                                     in.world->plans().topology());
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  return out;
}

}  // namespace intarsia
