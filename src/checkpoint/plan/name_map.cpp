#include "checkpoint/plan/name_map.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "base/text.h"
#include "checkpoint/format/json.h"
#include "checkpoint/format/stored_dtype.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::string_view kWhere = "checkpoint";
using Kind = MappedTensor::Kind;

/// What stands for each `*` of a pattern, and for its `#`.
struct Captures {
  std::vector<std::string> texts;
  std::int64_t number = 0;
};

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 9 && (text == "0" || text[0] != '0') &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool capture(std::string_view pattern, std::string_view name, Captures& out) {
  const std::size_t special = pattern.find_first_of("*#");
  if (special == pattern.npos) return pattern == name;
  if (name.substr(0, special) != pattern.substr(0, special)) return false;
  const std::string_view rest = pattern.substr(special + 1);
  const std::size_t dot = std::min(name.find('.', special), name.size());
  for (std::size_t end = dot; end > special; --end) {
    const std::string_view text = name.substr(special, end - special);
    Captures tried = out;
    if (pattern[special] == '#') {
      if (!is_number(text)) continue;
      tried.number = std::stoll(std::string(text));
    } else {
      tried.texts.emplace_back(text);
    }
    if (!capture(rest, name.substr(end), tried)) continue;
    out = std::move(tried);
    return true;
  }
  return false;
}

/// The name that a pattern stands for.
std::string filled(std::string_view pattern, const Captures& captures) {
  std::string out;
  std::size_t next = 0;
  for (const char each : pattern) {
    if (each == '*') {
      out += captures.texts.at(next++);
    } else if (each == '#') {
      out += std::to_string(captures.number);
    } else {
      out += each;
    }
  }
  return out;
}

bool has_number(const std::vector<std::string>& names) {
  return names.size() == 1 && names[0].find('#') != std::string::npos;
}

std::vector<std::string> names_in(const Field& field) {
  if (field.value.is_string()) return {field.text()};
  std::vector<std::string> out;
  for (std::size_t i = 0; i < field.list().size(); ++i) out.push_back(field.item(i).text());
  if (out.empty()) field.refuse("is an empty list");
  return out;
}

std::vector<std::int64_t> numbers_in(const Field& field, std::int64_t least) {
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < field.list().size(); ++i) {
    out.push_back(field.item(i).integer(least));
  }
  return out;
}

void check_rule(const Field& field, const MapRule& rule) {
  const bool several = rule.from.size() > 1 || rule.to.size() > 1;
  if (rule.from.size() > 1 && rule.to.size() > 1) field.refuse("has several names on both sides");
  if (has_number(rule.from) && has_number(rule.to)) field.refuse("has a '#' on both sides");
  const bool numbered = has_number(rule.from) || has_number(rule.to);
  if (numbered && several) field.refuse("has a '#' and several names");
  if (rule.stacks && !numbered && !several) field.refuse("stacks one tensor; use '#', or a list");
  if (!rule.order.empty() && (several || numbered)) {
    field.refuse("has an order of dimensions, and several tensors");
  }
  const std::size_t parts = std::max(rule.from.size(), rule.to.size());
  if (!rule.sizes.empty() && (rule.stacks || rule.sizes.size() != parts)) {
    field.refuse(concat("has ", rule.sizes.size(), " sizes of ", parts, " tensors"));
  }
  const auto stars = [](const std::string& name) {
    return std::count(name.begin(), name.end(), '*');
  };
  for (const auto* side : {&rule.from, &rule.to}) {
    for (const std::string& name : *side) {
      if (stars(name) != stars(rule.from[0])) {
        field.refuse(
            concat("has another number of '*' in '", name, "' than in '", rule.from[0], "'"));
      }
      if (std::count(name.begin(), name.end(), '#') > (numbered ? 1 : 0)) {
        field.refuse(concat("has too many '#' in '", name, "'"));
      }
    }
  }
  auto sorted = rule.order;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i] != static_cast<std::int64_t>(i)) field.refuse("has an order that is none");
  }
}

/// One application of rules to the tensors of a checkpoint.
class Apply {
 public:
  explicit Apply(std::span<const SavedTensor> tensors) : tensors_(tensors), taken_(tensors.size()) {
    for (std::size_t t = 0; t < tensors.size(); ++t) places_[tensors[t].name] = t;
  }

  void rule(const MapRule& rule) {
    rule_ = concat('\'', join(rule.from, ", "), "' to '", join(rule.to, ", "), '\'');
    bool is_used = false;
    // By what the stars stand for; the first name decides.
    std::map<std::vector<std::string>, std::map<std::int64_t, std::size_t>> found;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      Captures captures;
      if (taken_[t] || !capture(rule.from[0], tensors_[t].name, captures)) continue;
      found[captures.texts][captures.number] = t;
      is_used = true;
    }
    if (!is_used) refuse(concat("no tensor is called like '", rule.from[0], "'"));
    for (const auto& [texts, numbered] : found) {
      Captures captures{texts, 0};
      if (has_number(rule.from)) {
        combine(rule, filled(rule.to[0], captures), in_order(rule, captures, numbered));
      } else if (rule.from.size() > 1) {
        std::vector<std::size_t> parts;
        for (const std::string& name : rule.from) parts.push_back(take(filled(name, captures)));
        combine(rule, filled(rule.to[0], captures), parts);
      } else {
        divide(rule, captures, take(filled(rule.from[0], captures)));
      }
    }
  }

  std::vector<MappedTensor> finish() {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      if (!taken_[t]) out_.push_back(same(tensors_[t].name, t));
    }
    std::map<std::string_view, const MappedTensor*> names;
    for (const MappedTensor& tensor : out_) {
      if (names.emplace(tensor.name, &tensor).second) continue;
      fail<ValueError>(kWhere, "two tensors would be called '", tensor.name, "'");
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    fail<ValueError>(kWhere, "the rule ", rule_, ": ", reason);
  }

  std::size_t take(const std::string& name) {
    const auto found = places_.find(name);
    if (found == places_.end()) refuse(concat("there is no '", name, "'"));
    if (taken_[found->second]) refuse(concat("'", name, "' belongs to a rule before"));
    taken_[found->second] = true;
    return found->second;
  }

  std::vector<std::size_t> in_order(const MapRule& rule, Captures captures,
                                    const std::map<std::int64_t, std::size_t>& numbered) {
    std::vector<std::size_t> out;
    for (; captures.number < static_cast<std::int64_t>(numbered.size()); ++captures.number) {
      out.push_back(take(filled(rule.from[0], captures)));
    }
    return out;
  }

  MappedTensor same(const std::string& name, std::size_t tensor) const {
    const TensorType& type = tensors_[tensor].type;
    return {.name = name,
            .dtype = type.dtype,
            .shape = type.shape,
            .blocks = {{.tensor = tensor, .from = {}, .to = {}}}};
  }

  std::size_t checked_dim(const MapRule& rule, const Shape& shape, std::size_t more) const {
    const auto dim = static_cast<std::size_t>(rule.dim);
    if (dim >= shape.size() + more) {
      refuse(concat("there is no dimension ", dim, " in [", join(shape), ']'));
    }
    return dim;
  }

  /// Several become one.
  void combine(const MapRule& rule, std::string name, const std::vector<std::size_t>& parts) {
    MappedTensor out = same(std::move(name), parts[0]);
    out.blocks.clear();
    out.dim = rule.dim;
    out.kind = rule.stacks ? Kind::stacked : Kind::joined;
    const Shape first = out.shape;
    const std::size_t dim = checked_dim(rule, first, rule.stacks ? 1 : 0);
    std::int64_t at = 0;
    for (const std::size_t part : parts) {
      const TensorType& type = tensors_[part].type;
      Shape comparable = type.shape;
      if (!rule.stacks && comparable.size() > dim) comparable[dim] = first[dim];
      if (comparable != first || type.dtype != out.dtype) {
        refuse(concat("'", tensors_[part].name, "' is ", sizes_text(type.dtype, type.shape),
                      " beside ", sizes_text(out.dtype, first)));
      }
      const std::int64_t size = rule.stacks ? 1 : type.shape[dim];
      out.blocks.push_back({part, {0, size}, {at, at + size}});
      at += size;
    }
    if (rule.stacks) {
      out.shape.clear();
      for (std::size_t d = 0; d <= first.size(); ++d) {
        if (d == dim) out.shape.push_back(at);
        if (d < first.size()) out.shape.push_back(first[d]);
      }
    } else {
      out.shape[dim] = at;
    }
    out_.push_back(std::move(out));
  }

  /// One becomes one or several.
  void divide(const MapRule& rule, Captures captures, std::size_t tensor) {
    const Shape& shape = tensors_[tensor].type.shape;
    if (rule.to.size() == 1 && !has_number(rule.to)) return reorder(rule, captures, tensor);
    const std::size_t dim = checked_dim(rule, shape, 0);
    const bool numbered = has_number(rule.to);
    std::vector<std::int64_t> sizes(
        numbered ? static_cast<std::size_t>(shape[dim]) : rule.to.size(), 1);
    if (!rule.sizes.empty()) sizes = rule.sizes;
    const std::int64_t all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    const std::int64_t unit = rule.stacks ? 1 : all == 0 ? 0 : shape[dim] / all;
    if (unit * all != shape[dim]) {
      refuse(concat("a dimension of ", shape[dim], " is not shared by ", join(sizes, ":")));
    }
    std::int64_t at = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      captures.number = static_cast<std::int64_t>(i);
      MappedTensor out = same(filled(rule.to[numbered ? 0 : i], captures), tensor);
      const std::int64_t size = sizes[i] * unit;
      out.dim = rule.dim;
      out.kind = rule.stacks ? Kind::unstacked : Kind::joined;
      out.blocks[0] = {tensor, {at, at + size}, {0, size}};
      at += size;
      out.shape.clear();
      for (std::size_t d = 0; d < shape.size(); ++d) {
        if (d != dim || !rule.stacks) out.shape.push_back(d == dim ? size : shape[d]);
      }
      out_.push_back(std::move(out));
    }
  }

  void reorder(const MapRule& rule, const Captures& captures, std::size_t tensor) {
    MappedTensor out = same(filled(rule.to[0], captures), tensor);
    if (!rule.order.empty()) {
      const Shape shape = out.shape;
      if (rule.order.size() != shape.size()) {
        refuse(concat("[", join(shape), "] has not ", rule.order.size(), " dimensions"));
      }
      for (std::size_t d = 0; d < shape.size(); ++d) {
        out.shape[d] = shape[static_cast<std::size_t>(rule.order[d])];
      }
      out.order = rule.order;
    }
    out_.push_back(std::move(out));
  }

  std::span<const SavedTensor> tensors_;
  std::vector<bool> taken_;
  std::map<std::string_view, std::size_t> places_;
  std::string rule_;  // at hand
  std::vector<MappedTensor> out_;
};

}  // namespace

NameMap NameMap::parse(std::string_view file, std::string_view text) {
  const Json json = parse_json(file, text);
  const Field rules{json, file, "rules"};
  NameMap out;
  for (std::size_t i = 0; i < rules.list().size(); ++i) {
    const Field field = rules.item(i);
    field.only({"from", "to", "dim", "stack", "sizes", "order"});
    MapRule rule{.from = names_in(field.at("from")), .to = names_in(field.at("to"))};
    if (field.value.contains("dim")) rule.dim = field.at("dim").integer();
    if (field.value.contains("stack")) {
      rule.stacks = true;
      rule.dim = field.at("stack").integer();
    }
    if (field.value.contains("dim") && rule.stacks) field.refuse("has both 'dim' and 'stack'");
    if (field.value.contains("sizes")) rule.sizes = numbers_in(field.at("sizes"), 1);
    if (field.value.contains("order")) rule.order = numbers_in(field.at("order"), 0);
    check_rule(field, rule);
    if ((has_number(rule.from) || has_number(rule.to)) && !field.value.contains("dim")) {
      rule.stacks = true;
    }
    out.rules_.push_back(std::move(rule));
  }
  return out;
}

NameMap NameMap::reversed() const {
  NameMap out;
  for (MapRule rule : rules_) {
    std::swap(rule.from, rule.to);
    const auto order = rule.order;
    for (std::size_t d = 0; d < order.size(); ++d) {
      rule.order[static_cast<std::size_t>(order[d])] = static_cast<std::int64_t>(d);
    }
    out.rules_.push_back(std::move(rule));
  }
  return out;
}

std::vector<MappedTensor> NameMap::apply(std::span<const SavedTensor> tensors) const {
  Apply apply(tensors);
  for (const MapRule& rule : rules_) apply.rule(rule);
  return apply.finish();
}

}  // namespace intarsia::checkpoint
