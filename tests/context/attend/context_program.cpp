// Attention in random layouts, schedules, orders and with random masks, beside its definition on
// one rank.
//
//   context_program [--lockstep RANKS] [--from SEED] [--count N]
//
// Without --lockstep this is one of the processes that a launcher started. Ends with the number of
// cases that agree.
#include <torch/torch.h>

#include <string>

#include "base/text.h"
#include "context/attend/dense.h"
#include "context/campaign.h"
#include "context/mask/masks.h"
#include "intarsia/attention.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"

namespace intarsia::testing {
namespace {

template <class T>
const T& one_of(Random& random, const std::vector<T>& from) {
  return from[static_cast<std::size_t>(below(random, static_cast<std::int64_t>(from.size())))];
}

struct Case {
  std::string text;
  Mesh mesh;
  Layout query, key, value;
  DenseInput in;
  bool apart = false;  // the elements of a row, in memory
};

Mesh random_mesh(Random& random, std::int64_t ranks) {
  std::vector<std::string> texts{concat("[cp=", ranks, "]")};
  if (ranks % 2 == 0 && ranks > 2) texts.push_back(concat("[a=2,cp=", ranks / 2, "]"));
  if (ranks % 2 == 0 && ranks > 2) texts.push_back(concat("[cp=", ranks / 2, ",a=2]"));
  if (ranks == 8) texts.emplace_back("[a=2,b=2,cp=2]");
  return Mesh::parse(one_of(random, texts));
}

Layout random_layout(Random& random, const Mesh& mesh, const Layout* like) {
  std::vector<Placement> out;
  for (std::size_t a = 0; a < mesh.axes(); ++a) {
    if (like != nullptr && below(random, 5) > 0) {
      out.push_back(like->placement(a));
      continue;
    }
    const bool is_sequence = mesh.name(a) == "cp" && below(random, 8) > 0;
    static const std::vector<std::string> kAny{"S(0)", "S(1)", "S(2)", "S(2)", "R", "P(sum)"};
    out.push_back(Placement::parse(is_sequence ? "S(2)" : one_of(random, kAny)));
  }
  return Layout(mesh, out);
}

SequenceOrder random_order(Random& random, const Layout& layout, std::int64_t size,
                           const AttentionMask& mask) {
  const std::vector<std::string> axes = [&] {
    std::vector<std::string> names;
    for (const std::int8_t a : layout.axes_of(2)) {
      names.push_back(layout.mesh().name(static_cast<std::size_t>(a)));
    }
    return names;
  }();
  const std::vector<std::int64_t> sizes{1, 1, size, 1};
  const auto lengths =
      axes.empty() ? std::vector<std::int64_t>{size}
                   : lengths_along(layout, sizes, 2, axes, Coordinate(layout.mesh().axes(), 0));
  switch (below(random, 4)) {
    case 0:
      return {};
    case 1:
      return SequenceOrder::head_tail(lengths);
    case 2:
      return SequenceOrder::head_tail(lengths, random_documents(random, size));
    default:
      return SequenceOrder::balanced(lengths, mask, 1 + below(random, 8));
  }
}

at::Tensor random_values(Random& random, std::vector<std::int64_t> sizes, at::ScalarType dtype) {
  at::Generator g = at::detail::createCPUGenerator(random());
  return at::randn(sizes, g, at::TensorOptions(at::kDouble)).to(dtype);
}

Case random_case(std::uint64_t seed, std::int64_t ranks) {
  Random random(seed);
  Case out{.text = {},
           .mesh = random_mesh(random, ranks),
           .query = {},
           .key = {},
           .value = {},
           .in = {}};
  static const std::vector<at::ScalarType> kTypes{at::kDouble, at::kFloat, at::kFloat,
                                                  at::kBFloat16};
  const auto dtype = one_of(random, kTypes);
  const std::int64_t batch = 1 + below(random, 3);
  static const std::vector<std::string> kSchedules{"gather", "ring",           "ring",
                                                   "heads",  "auto+heads(cp)", "auto"};
  out.in.options.schedule = AttentionSchedule::parse(one_of(random, kSchedules));
  // Heads that ranks can share, in most cases in which they are to.
  const bool are_many = below(random, 8) > 0 && out.in.options.schedule != AttentionSchedule{};
  const std::int64_t key_heads = 1 + below(random, 4);
  const std::int64_t heads = are_many ? key_heads * ranks : key_heads * (1 + below(random, 3));
  const std::int64_t queries = 1 + below(random, below(random, 10) == 0   ? 4
                                                 : below(random, 12) == 0 ? 400
                                                                          : 70);
  const bool is_self = below(random, 5) > 0;
  const std::int64_t keys = is_self ? queries : 1 + below(random, 70);
  const std::int64_t size = 4 * (1 + below(random, 3));
  const bool in_keys = below(random, 8) == 0;  // values are a part of keys
  const std::int64_t value_size = in_keys                 ? 1 + below(random, size)
                                  : below(random, 4) == 0 ? 4 * (1 + below(random, 3))
                                                          : size;
  AttentionMask& mask = out.in.mask;
  if (is_self) {
    mask = random_mask(random, queries, batch);
  } else if (below(random, 2) == 0) {
    mask = AttentionMask::causal().offset(below(random, 2) == 0 ? keys - queries : 0);
  }
  out.query = random_layout(random, out.mesh, nullptr);
  out.key = random_layout(random, out.mesh, &out.query);
  out.value = random_layout(random, out.mesh, &out.key);
  out.in.query = random_values(random, {batch, heads, queries, size}, dtype);
  out.in.key = random_values(random, {batch, key_heads, keys, size}, dtype);
  out.in.value = random_values(random, {batch, key_heads, keys, value_size}, dtype);
  if (in_keys) {
    out.in.options.value_in_key = value_size;
    out.in.value = out.in.key.narrow(3, 0, value_size);
  }
  out.in.grad = random_values(random, {batch, heads, queries, value_size}, dtype);
  AttentionOptions& options = out.in.options;
  if (is_self) {
    options.order = random_order(random, out.query, queries, mask);
  } else {
    options.key_order = SequenceOrder();
  }
  if (below(random, 4) == 0) options.scale = 0.3;
  if (below(random, 5) == 0) options.dropout = 0.25;
  if (below(random, 6) == 0) {
    options.slopes = at::linspace(0.5, 0.05, heads, at::TensorOptions(at::kFloat));
  }
  out.apart = below(random, 4) == 0;
  out.text = concat("seed ", seed, ": ", c10::toString(dtype), " [", batch, ",", heads, "/",
                    key_heads, ",", queries, "/", keys, ",", size, "/", value_size, "] ", mask,
                    ", query ", out.query, ", key ", out.key.placements_text(), ", value ",
                    out.value.placements_text(), ", ", options.schedule, ", order ", options.order,
                    ", dropout ", options.dropout, options.slopes.defined() ? ", slopes" : "",
                    in_keys ? ", values in keys" : "", out.apart ? ", rows apart" : "");
  return out;
}

at::Tensor in_order(const at::Tensor& t, const SequenceOrder& order, bool back) {
  if (order.is_contiguous()) return t;
  const auto index = back ? order.places(t.size(2)) : order.positions(t.size(2));
  return t.index_select(2, at::tensor(index, at::kLong));
}

/// Nothing, or what is wrong.
std::string run(const Case& c, World& world) {
  const AttentionOptions& options = c.in.options;
  const SequenceOrder key_order = options.key_order.value_or(options.order);
  const auto laid_out = [&](const at::Tensor& t, const Layout& layout, const SequenceOrder& order) {
    return distribute(in_order(t, order, false), layout, world).requires_grad_(true);
  };
  const at::Tensor q = laid_out(c.in.query, c.query, options.order);
  const at::Tensor k = laid_out(c.in.key, c.key, key_order);
  const bool in_keys = options.value_in_key > 0;
  const at::Tensor v = in_keys ? at::Tensor() : laid_out(c.in.value, c.value, key_order);
  DenseInput in = c.in;
  if (options.dropout > 0) {
    // The weights that are kept do not depend on values: those of one rank, told by unit values.
    torch::manual_seed(5);
    const std::int64_t keys = in.key.size(2);
    at::Tensor units = at::eye(keys, at::kDouble).view({1, 1, keys, keys});
    units = units.expand({in.key.size(0), in.key.size(1), keys, keys}).contiguous();
    const at::Tensor zeros = at::zeros_like(in.query, at::kDouble);
    const at::Tensor weights = attention(zeros, at::zeros_like(in.key, at::kDouble), units, {},
                                         {.dropout = options.dropout});
    in.keep = weights * static_cast<double>(keys);
    torch::manual_seed(5);
  }
  // Views leave elements of a row apart, and results of ops, as gradients are, may be such.
  const auto stored = [&](const at::Tensor& t) {
    return c.apart && t.defined() ? t.transpose(2, 3).contiguous().transpose(2, 3) : t;
  };
  const at::Tensor out = attention(stored(q), stored(k), stored(v), in.mask, options);
  out.backward(stored(distribute(in_order(in.grad, options.order, false), layout_of(out), world)));
  Dense dense = dense_attention(in);
  if (in_keys) {
    dense.key_grad.narrow(3, 0, options.value_in_key).add_(dense.value_grad);
    dense.key_size.narrow(3, 0, options.value_in_key).add_(dense.value_size);
  }
  const double allowed = rounding(dense, in, 8 + world.size());
  const auto compare = [&](const char* what, const at::Tensor& got, const SequenceOrder& order,
                           const at::Tensor& want, const at::Tensor& size) {
    return difference(what, in_order(full(got.detach()), order, true), want, size, allowed);
  };
  std::string wrong = compare("the output", out, options.order, dense.out, dense.out_size);
  wrong +=
      compare("the query's gradient", q.grad(), options.order, dense.query_grad, dense.query_size);
  wrong += compare("the key's gradient", k.grad(), key_order, dense.key_grad, dense.key_size);
  if (!in_keys) {
    wrong +=
        compare("the value's gradient", v.grad(), key_order, dense.value_grad, dense.value_size);
  }
  return wrong;
}

CaseResult run_case(std::uint64_t seed, World& world) {
  const Case c = random_case(seed, world.size());
  CaseResult out{.text = c.text};
  try {
    out.wrong = run(c, world);
  } catch (const ValueError& error) {
    // More ranks than heads, the only thing that these cases have and a schedule does not allow.
    const std::string text = error.what();
    out.refused = text.find("which does not divide them") != std::string::npos ||
                  text.find("is for a sequence that is sharded on") != std::string::npos;
    if (!out.refused) out.wrong = text;
  } catch (const std::exception& error) {
    out.wrong = error.what();
  }
  return out;
}

}  // namespace
}  // namespace intarsia::testing

int main(int argc, char** argv) {
  return intarsia::testing::campaign(argc, argv, intarsia::testing::run_case);
}
