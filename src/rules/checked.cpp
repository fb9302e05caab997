#include "rules/checked.h"

#include <algorithm>

#include "base/text.h"
#include "intarsia/error.h"

namespace intarsia {
namespace {

constexpr std::string_view kWhere = "add_rule";

std::string counted(std::size_t n, std::string_view what) {
  return concat(n, ' ', what, n == 1 ? "" : "s");
}

void check_row(const std::string& rule, const Row& row, const Question& q, bool has_formula) {
  if (row.in.size() != q.inputs()) {
    fail<ValueError>(kWhere, "the rule of ", rule, " gives the row '", row.to_string(), "' for ",
                     counted(row.in.size(), "operand"), ", but ", q.schema().name(), " has ",
                     counted(q.inputs(), "tensor"),
                     "; a row has a placement for each, also for those in lists and for optional "
                     "ones that were not passed");
  }
  // An op that gives nothing has changed something in place.
  if (row.out.size() != std::max<std::size_t>(q.results(), 1)) {
    fail<ValueError>(kWhere, "the rule of ", rule, " gives the row '", row.to_string(), "' with ",
                     counted(row.out.size(), "result"), ", but ", q.schema().name(), " has ",
                     q.results(), "; a row has a placement for each");
  }
  if (row.formula && !has_formula) {
    fail<ValueError>(kWhere, "the rule of ", rule, " gives the row '", row.to_string(),
                     "', but has no formula; set RuleOptions::formula");
  }
}

void check_sizes(const std::string& rule, const Shapes& sizes, const Question& q) {
  if (!sizes.empty() && sizes.size() != q.results()) {
    fail<ValueError>(kWhere, "the rule of ", rule, " gives the sizes of ",
                     counted(sizes.size(), "result"), ", but ", q.schema().name(), " has ",
                     q.results(), "; give none where only the result can say them");
  }
  for (const Shape& shape : sizes) {
    if (std::all_of(shape.begin(), shape.end(), [](std::int64_t n) { return n >= 0; })) continue;
    fail<ValueError>(kWhere, "the rule of ", rule, " gives a result the sizes (", join(shape), ")");
  }
}

}  // namespace

Rule checked(Rule rule) {
  const bool has_formula = static_cast<bool>(rule.options.formula);
  rule.rows = [rows = std::move(rule.rows), name = rule.name, has_formula](const Question& q) {
    std::vector<Row> answer = rows(q);
    for (const Row& row : answer) check_row(name, row, q, has_formula);
    return answer;
  };
  rule.sizes = [sizes = std::move(rule.sizes), name = rule.name](const Question& q) {
    Shapes answer = sizes(q);
    check_sizes(name, answer, q);
    return answer;
  };
  return rule;
}

}  // namespace intarsia
