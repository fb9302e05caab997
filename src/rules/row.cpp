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
      const bool any_kind = cursor.accept("P(*)");
      const bool any_sum = !any_kind && !cursor.peek("P(") && cursor.accept("P");
      into.push_back(any_sum || any_kind ? Placement::partial() : parse_placement(cursor));
      row.linear |= any_sum || any_kind;
      row.any_kind |= any_kind;
      has_kind |= !any_sum && !any_kind && into.back().is_partial();
    } while (cursor.accept(","));
  };
  read(row.in);
  cursor.expect("->");
  read(row.out);
  if (cursor.accept("by formula")) row.formula = 0;
  if (cursor.accept("in runs")) {
    row.contiguous = true;
  } else if (cursor.accept("in")) {
    row.contiguous = true;
    row.parts = cursor.integer();
    cursor.expect("parts");
  }
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
      const char* partial = any_kind ? "P(*)" : "P";
      texts.push_back(linear && p.is_partial() ? partial : p.to_string());
    }
    return join(texts);
  };
  std::string text = concat(side(in), " -> ", side(out), formula ? " by formula" : "");
  if (contiguous) text += parts == 0 ? " in runs" : concat(" in ", parts, " parts");
  return text;
}

std::vector<Row> parse_rows(std::initializer_list<std::string_view> texts) {
  std::vector<Row> rows;
  for (const std::string_view text : texts) rows.push_back(Row::parse(text));
  return rows;
}

}  // namespace intarsia
