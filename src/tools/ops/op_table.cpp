#include "tools/ops/op_table.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "base/text.h"
#include "intarsia/error.h"
#include "prove/combinations.h"
#include "prove/samples.h"
#include "tensor/call/op_info.h"

namespace intarsia::tools {
namespace {

constexpr std::string_view kAten = "aten::";

std::string without_aten(std::string_view name) {
  return std::string(name.starts_with(kAten) ? name.substr(kAten.size()) : name);
}

bool takes_tensors(const OpInfo& op) {
  return std::any_of(op.arguments.begin(), op.arguments.end(), [](const OpInfo::Argument& a) {
    return a.kind == ArgumentKind::tensor || a.kind == ArgumentKind::tensor_list;
  });
}

/// Whether calls with distributed tensors get to our kernel, and then to one for the pieces.
bool reaches_us(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  for (const auto key : {DispatchKey::CPU, DispatchKey::CompositeExplicitAutograd,
                         DispatchKey::CompositeExplicitAutogradNonFunctional}) {
    if (op.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

bool is_in_table(const Rule& rule) {
  const auto rules = all_rules();
  return std::any_of(rules.begin(), rules.end(), [&](const auto& r) { return r.get() == &rule; });
}

std::string how_of(const OpInfo& op) {
  switch (op.family) {
    case Family::rule:
      return is_in_table(*op.rule) || op.rule->name != "pointwise" ? "rule" : "pointwise";
    case Family::view:
    case Family::reshapes:
      return "view";
    case Family::like:
      return "like";
    case Family::random:
      return "random";
    case Family::each:
      return "each";
    case Family::refused:
      return "refused";
    case Family::fallback:
      break;
  }
  return "no rule";
}

/// All ops by name, those in place under a name of their own.
std::map<std::string, OpEntry> by_name() {
  std::map<std::string, OpEntry> out;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op || !reaches_us(*op)) continue;
    const OpInfo info(*op);
    const bool foreign = !name.name.starts_with(kAten);
    if (!takes_tensors(info) || (foreign && info.rule == nullptr)) continue;
    OpEntry& entry = out[without_aten(name.name)];
    entry.name = without_aten(name.name);
    if (info.has_out) {
      entry.out = true;
    } else {
      entry.overloads.push_back(*op);
      entry.how = how_of(info);
    }
  }
  std::erase_if(out, [](const auto& e) { return e.second.overloads.empty(); });
  return out;
}

std::vector<std::string> rows_for(const Sample& sample) {
  std::vector<std::string> out;
  for (const Row& row : rows_of(sample, sample.values(0))) {
    const std::string text = row.to_string();
    if (std::find(out.begin(), out.end(), text) == out.end()) out.push_back(text);
  }
  return out;
}

/// How ill a sample shows what its rows say; the lowest is shown.
int oddness(const Sample& sample) {
  int odd = 0;
  for (const TensorSample* t : sample.tensors()) {
    const auto has = [&](std::int64_t n) {
      return std::find(t->sizes.begin(), t->sizes.end(), n) != t->sizes.end();
    };
    odd += (has(0) ? 4 : 0) + (has(1) ? 2 : 0);
    odd += (t->order.empty() ? 0 : 1) + (t->dtype == DType::f64 ? 0 : 1);
  }
  return odd;
}

/// How many single characters must be put in, left out or replaced to get from a to b.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

[[noreturn]] void fail_unknown(std::string_view name, const std::vector<OpEntry>& ops) {
  constexpr std::size_t kShown = 3;
  constexpr std::size_t kFar = 3;
  std::vector<std::pair<std::size_t, std::string>> near;
  for (const OpEntry& op : ops) near.emplace_back(distance(without_aten(name), op.name), op.name);
  std::sort(near.begin(), near.end());
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < near.size() && i < kShown && near[i].first <= kFar; ++i) {
    shown.push_back(near[i].second);
  }
  fail<ValueError>("ops", "there is no op '", name, "' that takes tensors on the CPU",
                   shown.empty() ? "" : "; similar are ", join(shown, ", "),
                   "; `intarsia ops` lists all, and --library loads yours");
}

}  // namespace

std::shared_ptr<const Rule> OpEntry::rule() const { return rule_of(overloads.front()); }

std::vector<std::string> OpEntry::samples() const {
  std::vector<std::string> out;
  for (const c10::OperatorHandle& op : overloads) {
    const auto more = samples_of(op);
    out.insert(out.end(), more.begin(), more.end());
  }
  return out;
}

std::vector<OpEntry> all_ops() {
  std::map<std::string, OpEntry> found = by_name();
  std::vector<OpEntry> out;
  for (auto& [name, entry] : found) {
    if (name.size() > 1 && name.ends_with('_')) {
      const auto same = found.find(name.substr(0, name.size() - 1));
      if (same != found.end() && same->second.how == entry.how) continue;
      entry.in_place = true;
    } else {
      entry.in_place = found.contains(name + '_');
    }
    std::sort(entry.overloads.begin(), entry.overloads.end(), [](const auto& a, const auto& b) {
      return a.operator_name().overload_name < b.operator_name().overload_name;
    });
    out.push_back(entry);
  }
  return out;
}

OpEntry find_op(std::string_view name) {
  const std::vector<OpEntry> ops = all_ops();
  std::string wanted = without_aten(name.substr(0, name.find('.')));
  const auto find = [&] {
    return std::find_if(ops.begin(), ops.end(), [&](const OpEntry& o) { return o.name == wanted; });
  };
  auto found = find();
  if (found == ops.end() && wanted.ends_with('_')) {
    wanted.pop_back();
    found = find();
  }
  if (found == ops.end()) fail_unknown(name, ops);
  return *found;
}

std::vector<c10::OperatorHandle> find_overloads(std::string_view name) {
  const std::string wanted = with_namespace(name);
  const bool has_overload = wanted.find('.') != std::string::npos;
  std::vector<c10::OperatorHandle> out;
  for (const c10::OperatorName& n : c10::Dispatcher::singleton().getAllOpNames()) {
    if ((has_overload ? c10::toString(n) : n.name) != wanted) continue;
    if (const auto op = c10::Dispatcher::singleton().findSchema(n)) out.push_back(*op);
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return a.operator_name().overload_name < b.operator_name().overload_name;
  });
  if (out.empty()) fail_unknown(name, all_ops());
  return out;
}

std::vector<RowSet> row_sets(const OpEntry& op) {
  std::vector<RowSet> out;
  const auto rule = op.rule();
  if (rule == nullptr) return out;
  std::vector<int> odd;  // of the sample that is shown
  for (const std::string& text : op.samples()) {
    const Sample sample = Sample::parse(text);
    const std::vector<std::string> rows = rows_for(sample);
    const auto same = std::find_if(out.begin(), out.end(), [&](const RowSet& s) {
      return std::set(s.rows.begin(), s.rows.end()) == std::set(rows.begin(), rows.end());
    });
    if (same == out.end()) {
      out.push_back({text, rows, 1});
      odd.push_back(oddness(sample));
      continue;
    }
    ++same->samples;
    int& least = odd[static_cast<std::size_t>(same - out.begin())];
    if (oddness(sample) < least) {
      least = oddness(sample);
      same->sample = text;
    }
  }
  return out;
}

}  // namespace intarsia::tools
