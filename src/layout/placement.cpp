#include "intarsia/placement.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "layout/parse.h"

namespace intarsia {
namespace {

struct ReductionName {
  Reduction reduction;
  std::string_view text;
};

constexpr std::array<ReductionName, 9> kReductions{{
    {Reduction::sum, "sum"},
    {Reduction::avg, "avg"},
    {Reduction::min, "min"},
    {Reduction::max, "max"},
    {Reduction::product, "prod"},
    {Reduction::bit_and, "and"},
    {Reduction::bit_or, "or"},
    {Reduction::bit_xor, "xor"},
    {Reduction::norm, "norm"},
}};

std::int16_t checked_dim(std::string_view where, std::int64_t dim) {
  using Limits = std::numeric_limits<std::int16_t>;
  if (dim < Limits::min() || dim > Limits::max()) {
    fail<ValueError>(where, "no tensor has a dimension ", dim);
  }
  return static_cast<std::int16_t>(dim);
}

}  // namespace

std::string_view to_text(Reduction reduction) {
  return kReductions[static_cast<std::size_t>(reduction)].text;
}

Placement Placement::shard(int dim) {
  Placement p;
  p.kind_ = Kind::shard;
  p.dim_ = checked_dim("Placement::shard", dim);
  return p;
}

Placement Placement::strided_shard(int dim, std::int64_t split) {
  if (split < 1 || split > (std::int64_t{1} << 56)) {
    fail<ValueError>("Placement::strided_shard", "SS(", dim, ",", split,
                     ") has no such blocks; the split factor is at least 1 and at most 2^56");
  }
  Placement p = shard(dim);
  if (split > 1) p.kind_ = Kind::strided_shard;
  p.split_ = split;
  return p;
}

Placement Placement::partial(Reduction reduction) {
  if (reduction == Reduction::norm) {
    fail<ValueError>("Placement::partial",
                     "a norm needs its order; use Placement::partial_norm(p)");
  }
  Placement p;
  p.kind_ = Kind::partial;
  p.reduction_ = reduction;
  return p;
}

Placement Placement::partial_norm(double p) {
  if (!(p > 0) || !std::isfinite(p)) {
    fail<ValueError>("Placement::partial_norm", "there is no partial norm of order ", p,
                     "; the order is above 0 and finite (use P(max) for infinity, P(min) for "
                     "-infinity, P(sum) of counts for 0)");
  }
  Placement out;
  out.kind_ = Kind::partial;
  out.reduction_ = Reduction::norm;
  out.order_ = p;
  return out;
}

std::string Placement::to_string() const {
  switch (kind_) {
    case Kind::replicate:
      return "R";
    case Kind::shard:
      return concat("S(", dim_, ')');
    case Kind::strided_shard:
      return concat("SS(", dim_, ',', split_, ')');
    case Kind::partial:
      break;
  }
  if (reduction_ == Reduction::norm) return concat("P(norm:", order_, ')');
  return concat("P(", to_text(reduction_), ')');
}

std::size_t Placement::hash() const {
  std::uint64_t h =
      hash_mix(static_cast<std::uint64_t>(kind_),
               static_cast<std::uint64_t>(reduction_) * 65536 + static_cast<std::uint16_t>(dim_));
  h = hash_mix(h, static_cast<std::uint64_t>(split_));
  return hash_mix(h, std::bit_cast<std::uint64_t>(order_));
}

Placement parse_placement(Cursor& cursor) {
  if (cursor.accept("SS(")) {
    const std::int64_t dim = cursor.integer();
    cursor.expect(",");
    const std::int64_t split = cursor.integer();
    cursor.expect(")");
    return Placement::strided_shard(checked_dim("Placement::parse", dim), split);
  }
  if (cursor.accept("S(")) {
    const std::int64_t dim = cursor.integer();
    cursor.expect(")");
    return Placement::shard(checked_dim("Placement::parse", dim));
  }
  if (cursor.accept("P(")) {
    const std::string name = cursor.name();
    for (const ReductionName& r : kReductions) {
      if (name != r.text) continue;
      if (r.reduction != Reduction::norm) {
        cursor.expect(")");
        return Placement::partial(r.reduction);
      }
      cursor.expect(":");
      const double p = cursor.number();
      cursor.expect(")");
      return Placement::partial_norm(p);
    }
    cursor.fail_here("a reduction (sum, avg, min, max, prod, and, or, xor, norm:p) before this");
  }
  if (cursor.accept("R")) return Placement::replicate();
  cursor.fail_here("a placement: R, S(dim), SS(dim,split) or P(reduction)");
}

Placement Placement::parse(std::string_view text) {
  Cursor cursor("Placement::parse", text);
  const Placement p = parse_placement(cursor);
  cursor.end();
  return p;
}

int normalize_dim(std::string_view where, std::int64_t dim, std::size_t dims) {
  const auto n = static_cast<std::int64_t>(dims);
  if (dim < -n || dim >= n) {
    fail<ValueError>(where, "dimension ", dim, " does not exist in a tensor of ", n,
                     n == 1 ? " dimension" : " dimensions",
                     n == 0 ? "; a scalar cannot be sharded" : concat("; use ", -n, "..", n - 1));
  }
  return static_cast<int>(dim < 0 ? dim + n : dim);
}

bool commute(const Placement& a, const Placement& b) {
  const auto linear = [](const Placement& p) {
    return p.reduction() == Reduction::sum || p.reduction() == Reduction::avg;
  };
  return a == b || (linear(a) && linear(b));
}

}  // namespace intarsia
