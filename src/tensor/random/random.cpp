#include "tensor/random/random.h"

#include <ATen/ATen.h>

#include <limits>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/move/state.h"
#include "tensor/move/write_through.h"
#include "tensor/random/key.h"
#include "tensor/random/philox.h"
#include "world/session/hosted_coordinates.h"

namespace intarsia {
namespace {

double number(const Frame& f, std::string_view name, double otherwise = 0) {
  const c10::IValue* v = f.argument(name);
  return v == nullptr || v->isNone() ? otherwise : v->toScalar().toDouble();
}

/// The largest range of random_ without bounds: all numbers that the dtype holds exactly.
std::uint64_t full_range(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return (std::uint64_t{1} << 53) + 1;
    case at::kFloat:
      return (std::uint64_t{1} << 24) + 1;
    case at::kHalf:
      return (std::uint64_t{1} << 11) + 1;
    case at::kBFloat16:
      return (std::uint64_t{1} << 8) + 1;
    case at::kBool:
      return 2;
    default: {
      std::uint64_t range = 0;
      AT_DISPATCH_INTEGRAL_TYPES(dtype, "random_", [&] {
        range = static_cast<std::uint64_t>(std::numeric_limits<scalar_t>::max()) + 1;
      });
      return range;
    }
  }
}

Fill integers(std::int64_t low, std::uint64_t range) {
  return [=](const at::Tensor& p, const Region& r, std::uint64_t k) {
    fill_integers(p, r, k, low, range);
  };
}

/// The distribution that an op in place asks for.
Fill fill_of(const Frame& f) {
  const std::string& op = f.info.base_name;
  const auto two = [&](auto fill, std::string_view a, std::string_view b, double x, double y) {
    const double first = number(f, a, x);
    const double second = number(f, b, y);
    return Fill([=](const at::Tensor& p, const Region& r, std::uint64_t k) {
      fill(p, r, k, first, second);
    });
  };
  const auto one = [&](auto fill, std::string_view a, double x) {
    const double first = number(f, a, x);
    return Fill(
        [=](const at::Tensor& p, const Region& r, std::uint64_t k) { fill(p, r, k, first); });
  };
  if (op == "uniform") return two(fill_uniform, "from", "to", 0, 1);
  if (op == "normal") return two(fill_normal, "mean", "std", 0, 1);
  if (op == "log_normal") return two(fill_log_normal, "mean", "std", 1, 2);
  if (op == "cauchy") return two(fill_cauchy, "median", "sigma", 0, 1);
  if (op == "exponential") return one(fill_exponential, "lambd", 1);
  if (op == "geometric") return one(fill_geometric, "p", 0.5);
  if (op == "bernoulli") {
    const double p = number(f, "p", 0.5);
    return
        [p](const at::Tensor& t, const Region& r, std::uint64_t k) { fill_bernoulli(t, r, k, p); };
  }
  const c10::IValue* from = f.argument("from");
  const c10::IValue* to = f.argument("to");
  if (to == nullptr) return integers(0, full_range(f.lead->spec()->dtype));
  const std::int64_t low = from == nullptr || from->isNone() ? 0 : from->toInt();
  if (to->isNone()) return integers(low, 0);
  if (to->toInt() <= low) {
    f.refuse(concat("no number is in [", low, ", ", to->toInt(), ")"), "give from < to");
  }
  return integers(low, static_cast<std::uint64_t>(to->toInt()) - static_cast<std::uint64_t>(low));
}

/// A new tensor like `self`, without partial, filled.
at::Tensor filled_like(const Frame& f, const Fill& fill, std::optional<at::ScalarType> dtype = {}) {
  const at::Tensor out =
      at::empty_like(*f.tensors[0].tensor, dtype ? at::TensorOptions(*dtype) : at::TensorOptions());
  DistributedImpl& impl = impl_of(out);
  fill_pieces(impl.world(), impl.spec()->layout, impl.spec()->sizes, impl.pieces(),
              next_key(f.state(), f.argument("generator")), fill);
  return out;
}

/// The probabilities of each element, laid out like `layout`.
at::Tensor laid_out(const at::Tensor& t, at::IntArrayRef sizes, const Layout& layout,
                    World& world) {
  const at::Tensor expanded = t.expand(sizes);
  return is_ours(expanded) ? redistribute(expanded, layout) : distribute(expanded, layout, world);
}

void run_in_place(Frame& f) {
  const at::Tensor self = *f.tensors[0].tensor;
  if (!is_ours(self)) {
    f.refuse("writes a distributed result into a plain tensor", "make it distributed first");
  }
  DistributedImpl& impl = impl_of(self);
  const Layout home = impl.spec()->layout;
  const Layout layout = without_partial(home);
  const Shape sizes = impl.spec()->sizes;
  Pieces pieces = impl.pieces();
  if (home != layout) {
    for (at::Tensor& p : pieces) p = at::empty_like(p);
  }
  const std::uint64_t key = next_key(f.state(), f.argument("generator"));
  const c10::IValue* p = f.argument("p");
  if (p != nullptr && p->isTensor()) {
    const at::Tensor chance = laid_out(p->toTensor(), to_ref(sizes), layout, impl.world());
    const auto here = hosted_coordinates(impl.world(), layout.mesh());
    for (std::size_t m = 0; m < pieces.size(); ++m) {
      const Boxes held = boxes(layout, sizes, here[m]);
      fill_bernoulli(pieces[m], Region{held, sizes}, key, impl_of(chance).pieces()[m]);
    }
  } else {
    fill_pieces(impl.world(), layout, sizes, pieces, key, fill_of(f));
  }
  if (home != layout) {
    const Pieces back =
        f.state().move(impl.spec().with(layout), pieces,
                       f.state().plan(impl.spec().with(layout), home), {.op = f.info.name});
    for (std::size_t m = 0; m < back.size(); ++m) impl.pieces()[m].copy_(back[m]);
  }
  f.state().note_write(impl);
  write_through(impl, f.info.name);
  f.finish(self);
}

/// Samples by noise that belongs to (row, category) or (row, sample): the same in every layout.
void run_multinomial(Frame& f) {
  const at::Tensor weights = full(*f.tensors[0].tensor);
  if (!weights.is_floating_point()) {
    f.refuse("weights are integers", "pass a floating dtype");
  }
  const std::int64_t samples = f.argument("num_samples")->toInt();
  const bool replace = f.argument("replacement")->toBool();
  const std::int64_t categories = weights.dim() == 0 ? 0 : weights.size(-1);
  if (weights.dim() < 1 || weights.dim() > 2 || samples < 1 || (!replace && samples > categories)) {
    f.refuse(concat("cannot draw ", samples, " samples ", replace ? "with" : "without",
                    " replacement from ", categories, " categories"),
             "weights have one or two dimensions");
  }
  const auto noise = [&](const at::Tensor& like, auto fill) {
    const Shape sizes = to_shape(like.sizes());
    const Layout alone;
    const Boxes held = boxes(alone, sizes, Coordinate{});
    fill(like, Region{held, sizes}, next_key(f.state(), f.argument("generator")));
  };
  at::Tensor out;
  if (replace) {
    std::vector<std::int64_t> sizes = weights.sizes().vec();
    sizes.back() = samples;
    const at::Tensor u = at::empty(sizes, weights.options().dtype(at::kDouble));
    noise(u, [](const at::Tensor& t, const Region& r, std::uint64_t k) {
      fill_uniform(t, r, k, 0, 1);
    });
    const at::Tensor steps = weights.to(at::kDouble).cumsum(-1);
    const at::Tensor total = steps.narrow(-1, categories - 1, 1);
    out = at::searchsorted(steps, u * total, /*out_int32=*/false, /*right=*/true)
              .clamp_max(categories - 1);
  } else {
    const at::Tensor e = at::empty(weights.sizes(), weights.options().dtype(at::kDouble));
    noise(e, [](const at::Tensor& t, const Region& r, std::uint64_t k) {
      fill_exponential(t, r, k, 1);
    });
    out = std::get<1>((weights.to(at::kDouble) / e).topk(samples, -1));
  }
  f.finish(distribute(out, Layout::replicated(f.mesh()), f.lead->world()));
}

void run_dropout(Frame& f) {
  const at::Tensor input = *f.tensors[0].tensor;
  const double p = number(f, "p", 0.5);
  const c10::IValue* train = f.argument("train");
  const bool drops = train == nullptr || train->isNone() || train->toBool();
  const at::Tensor mask = filled_like(
      f,
      [keep = drops ? 1 - p : 1.0](const at::Tensor& t, const Region& r, std::uint64_t k) {
        fill_bernoulli(t, r, k, keep);
      },
      at::kBool);
  at::Tensor out =
      drops ? at::mul(at::mul(input, mask), p == 1 ? 0.0 : 1 / (1 - p)) : input.clone();
  torch::jit::Stack results;
  results.emplace_back(std::move(out));
  results.emplace_back(mask);
  f.finish(std::move(results));
}

void run_functional(Frame& f) {
  const std::string& op = f.info.base_name;
  if (op == "multinomial") return run_multinomial(f);
  if (op == "native_dropout") return run_dropout(f);
  const c10::IValue* dtype = f.argument("dtype");
  const auto type = dtype == nullptr || dtype->isNone() ? std::optional<at::ScalarType>()
                                                        : std::optional(dtype->toScalarType());
  if (op == "rand_like") {
    return f.finish(filled_like(
        f,
        [](const at::Tensor& t, const Region& r, std::uint64_t k) { fill_uniform(t, r, k, 0, 1); },
        type));
  }
  if (op == "randn_like") {
    return f.finish(filled_like(
        f,
        [](const at::Tensor& t, const Region& r, std::uint64_t k) { fill_normal(t, r, k, 0, 1); },
        type));
  }
  if (op == "randint_like") {
    const std::int64_t low = f.argument("low") == nullptr ? 0 : f.argument("low")->toInt();
    const std::int64_t high = f.argument("high")->toInt();
    if (high <= low) f.refuse(concat("no number is in [", low, ", ", high, ")"), "give low < high");
    return f.finish(filled_like(f, integers(low, static_cast<std::uint64_t>(high - low)), type));
  }
  // bernoulli: with probability p, or with those that self holds.
  const c10::IValue* p = f.argument("p");
  at::Tensor out = at::empty_like(*f.tensors[0].tensor);
  const c10::IValue* given = f.argument("generator");
  const auto generator = given == nullptr ? std::nullopt : given->toOptional<at::Generator>();
  f.finish(p == nullptr ? out.bernoulli_(*f.tensors[0].tensor, generator)
                        : out.bernoulli_(p->toDouble(), generator));
}

}  // namespace

void fill_pieces(World& world, const Layout& layout, std::span<const std::int64_t> sizes,
                 const Pieces& pieces, std::uint64_t key, const Fill& fill) {
  check_key(world, layout, key);
  const auto here = hosted_coordinates(world, layout.mesh());
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const Boxes held = boxes(layout, sizes, here[m]);
    fill(pieces[m], Region{held, sizes}, key);
  }
}

void run_random(Frame& f) {
  const BelowAutograd below;
  if (f.info.has_out) {
    f.refuse("a random op with out= is not built", "use the op that returns a new tensor");
  }
  f.check_writes();
  if (f.info.in_place) {
    run_in_place(f);
  } else {
    run_functional(f);
  }
}

}  // namespace intarsia
