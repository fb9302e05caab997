#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/rule.h"
#include "layout/parse.h"

namespace intarsia {

Row Row::parse(std::string_view text) {
  Cursor cursor("Row::parse", text);
  Row row;
  bool has_kind = false;
  const auto read = [&](std::vector<Placement>& into) {
    do {
      const bool any_sum = !cursor.peek("P(") && cursor.accept("P");
      into.push_back(any_sum ? Placement::partial() : parse_placement(cursor));
      row.linear |= any_sum;
      has_kind |= !any_sum && into.back().is_partial();
    } while (cursor.accept(","));
  };
  read(row.in);
  cursor.expect("->");
  read(row.out);
  if (cursor.accept("by formula")) row.formula = 0;
  cursor.end();
  if (row.linear && has_kind) {
    fail<ValueError>("Row::parse", "'", text,
                     "' mixes P, which stands for sums and averages, with a kind of partial");
  }
  return row;
}

std::string Row::to_string() const {
  const auto side = [&](const std::vector<Placement>& placements) {
    std::vector<std::string> texts;
    for (const Placement& p : placements) {
      texts.push_back(linear && p.is_partial() ? "P" : p.to_string());
    }
    return join(texts);
  };
  return concat(side(in), " -> ", side(out), formula ? " by formula" : "");
}

std::vector<Row> parse_rows(std::initializer_list<std::string_view> texts) {
  std::vector<Row> rows;
  for (const std::string_view text : texts) rows.push_back(Row::parse(text));
  return rows;
}

}  // namespace intarsia
