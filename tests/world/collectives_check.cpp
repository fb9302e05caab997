#include "world/collectives_check.h"

#include <ATen/ATen.h>

#include <sstream>
#include <stdexcept>

#include "intarsia/collectives.h"
#include "intarsia/error.h"

namespace intarsia::testing {
namespace {

using Lengths = std::vector<std::int64_t>;

const std::vector<at::ScalarType> kAllTypes{
    at::kFloat,        at::kDouble,        at::kHalf,         at::kBFloat16, at::kChar,
    at::kShort,        at::kInt,           at::kLong,         at::kByte,     at::kBool,
    at::kComplexFloat, at::kComplexDouble, at::kFloat8_e4m3fn};

/// What the ranks hold, stacked: small whole numbers, so that sums and products are exact in every
/// dtype.
at::Tensor values_of(const std::vector<std::int64_t>& ranks, at::ScalarType type,
                     at::IntArrayRef shape) {
  std::vector<std::int64_t> stacked = shape.vec();
  stacked.insert(stacked.begin(), static_cast<std::int64_t>(ranks.size()));
  const at::Tensor count = at::arange(c10::multiply_integers(shape), at::kLong);
  const at::Tensor rank = at::tensor(ranks).view({-1, 1});
  const at::Tensor real =
      (count * 7 + rank * 5 + count * rank % 4).remainder(3).sub(1).reshape(stacked);
  if (type == at::kBool) return real.ne(0);
  if (type == at::kByte) return real.add(1).to(type);
  if (!c10::isComplexType(type)) return real.to(type);
  const at::Tensor imaginary = (count * 3 + rank).remainder(3).sub(1).reshape(stacked);
  return at::complex(real.to(at::kDouble), imaginary.to(at::kDouble)).to(type);
}

const std::vector<at::ScalarType> kQuickTypes{at::kFloat, at::kBFloat16, at::kShort, at::kBool,
                                              at::kComplexFloat};

class Checker {
 public:
  Checker(World& world, const std::vector<at::ScalarType>& types) : world_(world), types_(types) {}

  std::int64_t run() {
    comm(world_.everyone());
    const std::int64_t n = world_.size();
    if (n % 2 == 0) {
      const Mesh mesh({{"a", 2}, {"b", n / 2}});
      comm(world_.along(mesh, {"a"}));
      comm(world_.along(mesh, {"b"}));
      comm(world_.along(mesh, {"b", "a"}));
    }
    if (n > 2) comm(world_.along(Mesh({{"all", n}}).range("all", 1, n), {"all"}));
    barrier(world_.everyone());
    return checks_;
  }

 private:
  void comm(const Comm& comm) {
    if (comm.members().empty()) return outside(comm);
    group_.clear();
    const Mesh ranks = group_mesh(comm);
    for (std::int64_t i = 0; i < ranks.size(); ++i) group_.push_back(ranks.rank_at({i}));
    for (const at::ScalarType type : types_) moves(comm, type);
    for (const at::ScalarType type : types_) {
      if (type != at::kFloat8_e4m3fn) reductions(comm, type);
    }
    views(comm);
    barrier(comm);
  }

  /// A Comm's name is the mesh of its ranks; a group of one has no wire and no such name.
  Mesh group_mesh(const Comm& comm) const {
    if (comm.size() == 1) return Mesh({{"g", 1}}, world_.rank());
    return Mesh::parse(comm.name());
  }

  /// Not a member: every collective does nothing.
  void outside(const Comm& comm) {
    same("outside", all_gather(comm, at::TensorList(), 0).wait().size() == 0);
    same("outside", all_reduce(comm, at::TensorList(), Placement::partial()).wait().empty());
    barrier(comm);
  }

  at::Tensor of(std::size_t i, at::ScalarType type, at::IntArrayRef shape) const {
    return values_of({group_[i]}, type, shape)[0];
  }

  std::vector<at::Tensor> of_all(at::ScalarType type, at::IntArrayRef shape) const {
    return values_of(group_, type, shape).unbind(0);
  }

  Lengths uneven(std::int64_t n) const {
    Lengths out;
    for (std::int64_t i = 0; i < n; ++i) out.push_back((2 * i + 1) % 4 == 3 ? 0 : 1 + i % 3);
    return out;
  }

  void moves(const Comm& comm, at::ScalarType type) {
    const auto n = static_cast<std::size_t>(comm.size());
    const auto me = static_cast<std::size_t>(comm.index());
    const Call call{"x", "test", "moves"};

    for (const std::int64_t dim : {0, 1, -1}) {
      for (const bool even : {true, false}) {
        const Lengths lengths = even ? Lengths(n, 2) : uneven(comm.size());
        std::vector<at::Tensor> all = of_all(type, {3, 3, 3});
        for (std::size_t i = 0; i < n; ++i) all[i] = all[i].narrow(dim, 0, lengths[i]);
        same("all_gather", all_gather(comm, all[me], dim, lengths, call).tensor(),
             at::cat(all, dim));
        if (even) same("all_gather", all_gather(comm, all[me], dim).tensor(), at::cat(all, dim));
      }
    }

    // Rank i holds rows `rows[i]`; afterwards columns `cols[i]`.
    for (const bool even : {true, false}) {
      const Lengths rows = even ? Lengths(n, 2) : uneven(comm.size());
      Lengths cols = rows;
      std::reverse(cols.begin(), cols.end());
      const std::int64_t width = std::accumulate(cols.begin(), cols.end(), std::int64_t{0});
      std::vector<at::Tensor> all = of_all(type, {3, width, 2});
      for (std::size_t i = 0; i < n; ++i) all[i] = all[i].narrow(0, 0, rows[i]);
      const at::Tensor whole = at::cat(all, 0);
      const std::int64_t start = std::accumulate(
          cols.begin(), cols.begin() + static_cast<std::ptrdiff_t>(me), std::int64_t{0});
      const at::Tensor expected = whole.narrow(1, start, cols[me]);
      same("all_to_all", all_to_all(comm, all[me], 1, 0, cols, rows, call).tensor(), expected);
      if (even) same("all_to_all", all_to_all(comm, all[me], 1, 0).tensor(), expected);
    }

    // Along one dimension, where rank i cuts its own lengths: (i + 2j) % 3 for rank j.
    {
      const auto length = [](std::size_t from, std::size_t to) {
        return static_cast<std::int64_t>((from + 2 * to) % 3);
      };
      std::vector<at::Tensor> all = of_all(type, {2, 2 * comm.size()});
      std::vector<at::Tensor> arriving;
      Lengths cuts;
      Lengths joins;
      for (std::size_t i = 0; i < n; ++i) {
        std::int64_t start = 0;
        std::int64_t total = 0;
        for (std::size_t j = 0; j < n; ++j) {
          if (j < me) start += length(i, j);
          total += length(i, j);
        }
        all[i] = all[i].narrow(1, 0, total);
        arriving.push_back(all[i].narrow(1, start, length(i, me)));
        cuts.push_back(length(me, i));
        joins.push_back(length(i, me));
      }
      same("all_to_all", all_to_all(comm, all[me], 1, 1, cuts, joins, call).tensor(),
           at::cat(arriving, 1));
    }

    for (const std::size_t root : {std::size_t{0}, n - 1}) {
      const at::Tensor mine = of(me, type, {3, 2});
      same("broadcast", broadcast(comm, mine, static_cast<std::int64_t>(root)).tensor(),
           of(root, type, {3, 2}));
      same("broadcast leaves its input alone", mine, of(me, type, {3, 2}));
    }

    Lengths to;  // a rotation, and for three ranks and more a swap that leaves others in place
    for (std::size_t i = 0; i < n; ++i) to.push_back(static_cast<std::int64_t>((i + 1) % n));
    same("permute", permute(comm, of(me, type, {2, 3}), to).tensor(),
         of((me + n - 1) % n, type, {2, 3}));
    std::vector<std::vector<std::int64_t>> shapes;
    for (std::size_t i = 0; i < n; ++i) {
      to[i] = static_cast<std::int64_t>(i);
      shapes.push_back({static_cast<std::int64_t>(i % 3), 2});
    }
    if (n > 1) std::swap(to[0], to[1]);
    const std::size_t from = n > 1 && me < 2 ? 1 - me : me;
    same("permute", permute(comm, of(me, type, shapes[me]), to, shapes).tensor(),
         of(from, type, shapes[from]));
  }

  /// One term of each rank, stacked. Terms of a norm are norms themselves: not negative.
  at::Tensor terms(at::ScalarType type, const Placement& how, at::IntArrayRef shape) const {
    const at::Tensor t = values_of(group_, type, shape);
    return how.reduction() == Reduction::norm && c10::isFloatingType(type) ? t.abs() : t;
  }

  void reductions(const Comm& comm, at::ScalarType type) {
    for (const char* text : {"P(sum)", "P(avg)", "P(min)", "P(max)", "P(prod)", "P(and)", "P(or)",
                             "P(xor)", "P(norm:2)", "P(norm:3)"}) {
      const Placement how = Placement::parse(text);
      const at::Tensor all = terms(type, how, {5, 3});
      const at::Tensor mine = all[comm.index()];
      if (!fits(how, type)) {
        refuses(comm, mine, how);
        continue;
      }
      compare("all_reduce " + how.to_string(), all_reduce(comm, mine, how).tensor(),
              reduced(all, how), how);
      scatter(comm, type, how);
    }
  }

  void scatter(const Comm& comm, at::ScalarType type, const Placement& how) {
    const auto n = static_cast<std::size_t>(comm.size());
    const auto me = static_cast<std::size_t>(comm.index());
    for (const std::int64_t dim : {0, 1}) {
      for (const bool even : {true, false}) {
        const Lengths lengths = even ? Lengths(n, 2) : uneven(comm.size());
        const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
        const std::int64_t start = std::accumulate(
            lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(me), std::int64_t{0});
        const std::vector<std::int64_t> shape =
            dim == 0 ? std::vector<std::int64_t>{total, 2} : std::vector<std::int64_t>{2, total};
        const at::Tensor all = terms(type, how, shape);
        const at::Tensor expected = reduced(all, how).narrow(dim, start, lengths[me]);
        compare("reduce_scatter " + how.to_string(),
                reduce_scatter(comm, all[comm.index()], dim, how, lengths).tensor(), expected, how);
      }
    }
  }

  /// Lazily conjugated and negated views, non-contiguous and scalar inputs, NaNs, tensors that need
  /// a gradient, and several collectives under way at once.
  void views(const Comm& comm) {
    const auto n = static_cast<std::size_t>(comm.size());
    const auto me = static_cast<std::size_t>(comm.index());
    std::vector<at::Tensor> all = of_all(at::kComplexFloat, {2, 3});
    for (at::Tensor& t : all) t = t.conj().t();
    same("conj", all_gather(comm, all[me], 0).tensor(), at::cat(all, 0).resolve_conj());
    compare("conj", all_reduce(comm, all[me], Placement::partial()).tensor(),
            reduced(at::stack(all), Placement::partial()).resolve_conj(), Placement::partial());
    for (at::Tensor& t : all) t = at::imag(t);
    same("neg", broadcast(comm, all[me], 0).tensor(), all[0].resolve_neg().contiguous());

    const at::Tensor scalar = at::scalar_tensor(static_cast<double>(me), at::kDouble);
    same("scalar", all_reduce(comm, scalar, Placement::partial(Reduction::max)).tensor(),
         at::scalar_tensor(static_cast<double>(n - 1), at::kDouble));
    const at::Tensor nan = at::full({2}, me == n - 1 ? std::nan("") : 1.0);
    for (const Reduction how : {Reduction::min, Reduction::max, Reduction::sum}) {
      same("nan",
           all_reduce(comm, nan, Placement::partial(how)).tensor().isnan().all().item<bool>());
    }
    same("empty", all_reduce(comm, at::zeros({0, 3}), Placement::partial()).tensor(),
         at::zeros({0, 3}));

    // One element and none, with a stride that says nothing.
    for (const std::int64_t length : {1, 0}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        const at::Tensor column = at::full({length, 5}, double(me), type).select(1, 3);
        const auto count = static_cast<std::int64_t>(n) * length;
        same("strides", all_gather(comm, column, 0).tensor(), at::arange(count).to(type));
        same("strides", all_reduce(comm, column, Placement::partial(Reduction::max)).tensor(),
             at::full({length}, double(n - 1), type));
        same("strides", broadcast(comm, column, 0).tensor(), at::zeros({length}, type));
        Lengths next;
        for (std::size_t i = 0; i < n; ++i) next.push_back(static_cast<std::int64_t>((i + 1) % n));
        same("strides", permute(comm, column, next).tensor(),
             at::full({length}, double((me + n - 1) % n), type));
      }
    }

    at::Tensor leaf = at::ones({3}).set_requires_grad(true);
    if (n > 1) same("no grad", !all_gather(comm, leaf, 0).tensor().requires_grad());

    std::vector<Pending> under_way;
    for (int k = 0; k < 4; ++k)
      under_way.push_back(all_gather(comm, at::full({2}, k + 10 * int(me)), 0));
    for (int k = 3; k >= 0; --k) {
      same("async", under_way[static_cast<std::size_t>(k)].tensor()[0].item<std::int64_t>() == k);
    }
    { const Pending dropped = all_reduce(comm, at::ones({4}), Placement::partial()); }
  }

  static bool fits(const Placement& how, at::ScalarType type) {
    const bool integral = c10::isIntegralType(type, /*includeBool=*/true);
    switch (how.reduction()) {
      case Reduction::avg:
        return !integral;
      case Reduction::norm:
        return c10::isFloatingType(type);
      case Reduction::min:
      case Reduction::max:
        return !c10::isComplexType(type);
      case Reduction::bit_and:
      case Reduction::bit_or:
      case Reduction::bit_xor:
        return integral;
      default:
        return true;
    }
  }

  /// The reduction of stacked terms, in a wide dtype.
  static at::Tensor reduced(const at::Tensor& terms, const Placement& how) {
    const at::ScalarType type = terms.scalar_type();
    const bool real = c10::isFloatingType(type);
    const at::Tensor wide = terms.to(c10::isComplexType(type) ? at::kComplexDouble
                                     : real                   ? at::kDouble
                                                              : type);
    const auto bitwise = [&wide](auto op) {
      at::Tensor out = wide[0];
      for (std::int64_t i = 1; i < wide.size(0); ++i) out = op(out, wide[i]);
      return out;
    };
    switch (how.reduction()) {
      case Reduction::sum:
        return (type == at::kBool ? wide.any(0) : wide.sum(0)).to(type);
      case Reduction::avg:
        return wide.sum(0).div(static_cast<double>(wide.size(0))).to(type);
      case Reduction::min:
        return wide.amin(0).to(type);
      case Reduction::max:
        return wide.amax(0).to(type);
      case Reduction::product:
        return (type == at::kBool ? wide.all(0) : wide.prod(0)).to(type);
      case Reduction::norm:
        return wide.pow(how.norm_order()).sum(0).pow(1 / how.norm_order()).to(type);
      case Reduction::bit_and:
        return bitwise([](auto a, auto b) { return at::bitwise_and(a, b); });
      case Reduction::bit_or:
        return bitwise([](auto a, auto b) { return at::bitwise_or(a, b); });
      case Reduction::bit_xor:
        return bitwise([](auto a, auto b) { return at::bitwise_xor(a, b); });
    }
    return {};
  }

  void refuses(const Comm& comm, const at::Tensor& t, const Placement& how) {
    if (comm.size() == 1) return;
    try {
      all_reduce(comm, t, how).wait();
    } catch (const ValueError&) {
      ++checks_;
      return;
    }
    wrong("all_reduce " + how.to_string() + " was not refused", t, t);
  }

  /// Exact, but for a rounded division or root, where one unit in the last place of a value of the
  /// accumulator's and the result's dtype is allowed.
  void compare(const std::string& what, const at::Tensor& got, const at::Tensor& expected,
               const Placement& how) {
    const bool rounds = how.reduction() == Reduction::avg || how.reduction() == Reduction::norm;
    if (!rounds) return same(what, got, expected);
    const double unit = got.scalar_type() == at::kDouble || got.scalar_type() == at::kComplexDouble
                            ? 0x1p-52
                        : got.scalar_type() == at::kHalf     ? 0x1p-10
                        : got.scalar_type() == at::kBFloat16 ? 0x1p-7
                                                             : 0x1p-23;
    ++checks_;
    const double terms = static_cast<double>(world_.size());  // roundings of a sum of powers
    if (got.sizes() != expected.sizes() || got.scalar_type() != expected.scalar_type() ||
        !at::allclose(got, expected, unit * (2 + (how.reduction() == Reduction::norm ? terms : 0)),
                      0)) {
      wrong(what, got, expected);
    }
  }

  void same(const std::string& what, const at::Tensor& got, const at::Tensor& expected) {
    ++checks_;
    const auto bits = [](const at::Tensor& t) {
      return t.scalar_type() == at::kFloat8_e4m3fn ? t.contiguous().view(at::kByte) : t;
    };
    if (got.sizes() != expected.sizes() || got.scalar_type() != expected.scalar_type() ||
        !at::equal(bits(got), bits(expected))) {
      wrong(what, got, expected);
    }
  }

  void same(const std::string& what, bool holds) {
    ++checks_;
    if (!holds) throw std::runtime_error(what + " does not hold");
  }

  [[noreturn]] void wrong(const std::string& what, const at::Tensor& got,
                          const at::Tensor& expected) const {
    std::ostringstream text;
    text << "rank " << world_.rank() << ": " << what << " of " << got.scalar_type() << " gave\n"
         << got << "\ninstead of\n"
         << expected;
    throw std::runtime_error(text.str());
  }

  World& world_;
  const std::vector<at::ScalarType>& types_;
  std::vector<std::int64_t> group_;
  std::int64_t checks_ = 0;
};

}  // namespace

std::int64_t check_collectives(World& world, bool quick) {
  return Checker(world, quick ? kQuickTypes : kAllTypes).run();
}

}  // namespace intarsia::testing
