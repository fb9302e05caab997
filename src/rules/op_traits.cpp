#include "rules/op_traits.h"

#include <algorithm>
#include <array>

namespace intarsia {
namespace {

struct Entry {
  std::string_view name;
  int traits;
};

// Sorted by name.
constexpr auto kTable = std::to_array<Entry>({
    {"_batch_norm_with_update", kUpdatesStatistics},
    {"_native_batch_norm_legit", kUpdatesStatistics},
    {"abs", kElementwiseList},
    {"add", kElementwiseList | kInitialises | kReadsBefore},
    {"addcdiv", kElementwiseList},
    {"addcmul", kElementwiseList},
    {"as_strided", kReshapes},
    {"bernoulli", kRandom | kRandomInPlace | kInitialises},
    {"cauchy", kRandomInPlace | kInitialises},
    {"ceil", kElementwiseList},
    {"clamp", kInitialises | kReadsBefore},
    {"clamp_max", kElementwiseList},
    {"clamp_min", kElementwiseList},
    {"copy", kElementwiseList | kOverwrites},
    {"cos", kElementwiseList},
    {"cosh", kElementwiseList},
    {"div", kElementwiseList | kInitialises | kReadsBefore},
    {"empty_like", kLike},
    {"erf", kElementwiseList},
    {"erfc", kElementwiseList},
    {"exp", kElementwiseList},
    {"expm1", kElementwiseList},
    {"exponential", kRandomInPlace | kInitialises},
    {"fill", kOverwrites | kInitialises},
    {"floor", kElementwiseList},
    {"frac", kElementwiseList},
    {"full_like", kLike},
    {"geometric", kRandomInPlace | kInitialises},
    {"lerp", kElementwiseList},
    {"log", kElementwiseList},
    {"log10", kElementwiseList},
    {"log1p", kElementwiseList},
    {"log2", kElementwiseList},
    {"log_normal", kRandomInPlace | kInitialises},
    {"maximum", kElementwiseList},
    {"minimum", kElementwiseList},
    {"mul", kElementwiseList | kInitialises | kReadsBefore},
    {"multinomial", kRandom},
    {"native_batch_norm", kUpdatesStatistics},
    {"native_dropout", kRandom},
    {"neg", kElementwiseList},
    {"new_empty", kLike},
    {"new_empty_strided", kLike},
    {"new_full", kLike},
    {"new_ones", kLike},
    {"new_zeros", kLike},
    {"normal", kRandomInPlace | kInitialises},
    {"ones_like", kLike},
    {"pow", kElementwiseList},
    {"rand_like", kLike | kRandom},
    {"randint_like", kRandom},
    {"randn_like", kLike | kRandom},
    {"random", kRandomInPlace | kInitialises},
    {"reciprocal", kElementwiseList},
    {"resize", kResizes},
    {"resize_as", kResizes},
    {"round", kElementwiseList},
    {"rsqrt", kElementwiseList},
    {"set", kResizes},
    {"sigmoid", kElementwiseList},
    {"sign", kElementwiseList},
    {"sin", kElementwiseList},
    {"sqrt", kElementwiseList},
    {"squeeze", kReshapes},
    {"sub", kElementwiseList | kInitialises | kReadsBefore},
    {"t", kReshapes},
    {"tan", kElementwiseList},
    {"tanh", kElementwiseList},
    {"transpose", kReshapes},
    {"uniform", kRandomInPlace | kInitialises},
    {"unsqueeze", kReshapes},
    {"zero", kElementwiseList | kOverwrites | kInitialises},
    {"zeros_like", kLike},
});

static_assert(std::is_sorted(kTable.begin(), kTable.end(),
                             [](const Entry& a, const Entry& b) { return a.name < b.name; }));

}  // namespace

bool has_trait(std::string_view base_name, OpTrait trait) {
  const auto at =
      std::lower_bound(kTable.begin(), kTable.end(), base_name,
                       [](const Entry& e, std::string_view name) { return e.name < name; });
  return at != kTable.end() && at->name == base_name && (at->traits & trait) != 0;
}

std::string_view base_of(std::string_view name) {
  const auto colons = name.find("::");
  if (colons != std::string_view::npos) name.remove_prefix(colons + 2);
  if (name.size() > 1 && name.back() == '_') name.remove_suffix(1);
  return name;
}

std::string_view known_as(std::string_view base) {
  if (base == "_index_put_impl" || base == "_unsafe_index_put") return "index_put";
  if (base == "_unsafe_index") return "index";
  return base;
}

}  // namespace intarsia
