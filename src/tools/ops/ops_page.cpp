#include "tools/ops/ops_page.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "intarsia/error.h"
#include "tools/ops/op_table.h"

namespace intarsia::tools {
namespace {

constexpr std::string_view kHead = R"(# Ops

Written by `intarsia ops --markdown` from the table of rules; do not edit (HACKING.md says how to update it). Names
are those of ATen, without overload. Rules are proven by `intarsia ops check`: each is run on many ranks and layouts
and compared with the op on one rank ([tensors.md](../tensors.md#rules-for-your-own-ops)).

An op of ATen that is made of others (`linear`, `matmul`, `einsum`, `cross_entropy_loss`, ...) needs no rule: ATen
takes it apart before it gets here. An op that nothing below covers runs on full tensors: its operands are gathered,
and the bill marks the entry with `no rule`.

## How to read rows

A row is one way to run an op along one axis of the mesh: the placements of its tensors there, in the order of its
arguments, and then those of its results. `S(0),R -> S(0)`: the first is sharded along dimension 0, the second is the
same on all ranks, and so the result is sharded along dimension 0. `P` is a partial value of a sum or of an average, in
which the op is linear. `P(max)` is a partial value of a maximum, and so on. All replicated, `R,R -> R`, always works
and is not shown. A dimension that is sharded in blocks takes the same rows: its blocks go where `S` goes. On several
axes, each axis takes a row of its own.

Which rows there are depends on the call. So each line has a sample call: `f64[4, 6]` is a tensor of that dtype and
those sizes. Of several calls with the same rows one is shown. Operands whose placements are in no row are moved
first: partial values of another kind, or other shards.
)";

std::string code(std::string_view text) {
  // A bar would end the cell of a table.
  std::string out = "`";
  for (const char c : text) c == '|' ? out += "\\|" : out += c;
  return out + '`';
}

std::string wrapped(const std::vector<std::string>& words, std::string_view separator) {
  constexpr std::size_t kWidth = 110;
  std::string out;
  std::size_t column = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string word = concat(words[i], i + 1 < words.size() ? separator : ".");
    if (column > 0 && column + 1 + word.size() > kWidth) {
      out += '\n';
      column = 0;
    }
    if (column > 0) out += ' ';
    column += (column > 0 ? 1 : 0) + word.size();
    out += word;
  }
  return out + '\n';
}

std::string names_of(const std::vector<OpEntry>& ops) {
  std::vector<std::string> names;
  for (const OpEntry& op : ops) names.push_back(code(op.name));
  return names.empty() ? "None.\n" : wrapped(names, ",");
}

std::vector<OpEntry> done(const std::vector<OpEntry>& ops, std::string_view how) {
  std::vector<OpEntry> out;
  std::copy_if(ops.begin(), ops.end(), std::back_inserter(out),
               [&](const OpEntry& op) { return op.how == how; });
  return out;
}

std::string cell(const std::vector<std::string>& rows) {
  std::vector<std::string> out;
  for (const std::string& row : rows) out.push_back(code(row));
  return out.empty() ? "only R" : join(out, ", ");
}

/// The call without what all of them have.
std::string short_call(std::string_view sample) {
  return code(sample.starts_with("aten::") ? sample.substr(6) : sample);
}

std::string form_of(LocalForm form) {
  switch (form) {
    case LocalForm::same:
      return "";
    case LocalForm::mean_from_sum:
      return " A mean over what is sharded is made of sums, divided by the full count.";
    case LocalForm::loss_from_sum:
      return " A mean over a batch that is sharded is made of sums, divided by the full weight.";
    case LocalForm::rows_of_table:
      return " Where the table is sharded along its rows, each rank looks up those that it has.";
  }
  return "";
}

std::string section(const OpEntry& op) {
  const auto samples = op.samples();
  std::vector<std::string> variants;
  if (op.in_place) variants.emplace_back("in place");
  if (op.out) variants.emplace_back("with `out=`");
  std::string text =
      concat("### ", op.name, "\n\n", samples.size(), " samples", variants.empty() ? "" : "; also ",
             join(variants, " and "), '.', form_of(op.rule()->options.form), '\n');
  const auto sets = row_sets(op);
  if (!sets.empty()) text += "\n| call | rows |\n|---|---|\n";
  for (const RowSet& set : sets) {
    text += concat("| ", short_call(set.sample), " | ", cell(set.rows), " |\n");
  }
  return text + '\n';
}

/// The rows of pointwise ops that take partial tensors; rows with shards are the same for all.
std::string partial_rows(const std::vector<OpEntry>& pointwise) {
  std::map<std::string, std::vector<std::string>> by_rows;
  for (const OpEntry& op : pointwise) {
    std::vector<std::string> rows;
    for (const RowSet& set : row_sets(op)) {
      for (const std::string& row : set.rows) {
        const bool known = std::find(rows.begin(), rows.end(), row) != rows.end();
        if (row.find('P') != std::string::npos && !known) rows.push_back(row);
      }
    }
    if (!rows.empty()) by_rows[cell(rows)].push_back(code(op.name));
  }
  std::string text = "| rows | ops |\n|---|---|\n";
  for (const auto& [rows, ops] : by_rows)
    text += concat("| ", rows, " | ", join(ops, ", "), " |\n");
  return text;
}

std::string missing_rows(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) fail<ValueError>("ops", "cannot read ", file.string());
  // Overloads of one op together, in the order of the file.
  std::map<std::string, std::vector<std::string>> by_op;
  std::size_t count = 0;
  const auto by_overload = nlohmann::ordered_json::parse(in);
  for (const auto& [op, rows] : by_overload.items()) {
    auto& all = by_op[short_call(op.substr(0, op.find('.')))];
    for (const auto& [row, sample] : rows.items()) {
      if (std::find(all.begin(), all.end(), row) != all.end()) continue;
      all.push_back(row);
      ++count;
    }
  }
  std::string text = concat("## Missing rows: ", count, R"(

Rows that the prover found to be right for some sample, and that the rule does not offer: operands that are laid out
so are moved though they need not be. Some are right only for certain sizes or values. A sample for each is in
[missing_rules.json](missing_rules.json).

| op | rows |
|---|---|
)");
  for (const auto& [op, rows] : by_op) text += concat("| ", op, " | ", cell(rows), " |\n");
  return text;
}

}  // namespace

std::string ops_page(const std::filesystem::path& missing) {
  const std::vector<OpEntry> ops = all_ops();
  const auto ruled = done(ops, "rule");
  const auto pointwise = done(ops, "pointwise");
  auto unruled = done(ops, "no rule");
  std::erase_if(unruled, [](const OpEntry& op) { return op.samples().empty(); });

  std::string page(kHead);
  page += concat("\n## Ops with a rule of their own: ", ruled.size(), "\n\n");
  for (const OpEntry& op : ruled) page += section(op);
  page += concat("## Pointwise ops: ", pointwise.size(), R"(

Every op that ATen tags pointwise and that has no rule of its own. A dimension of the result may be sharded; operands
are sharded along the dimension that is broadcast to it, and those that are broadcast along it are replicated:
`add(f64[2, 1, 5], f64[3, 1])` has `S(0),R -> S(0)`, `R,S(0) -> S(1)` and `S(2),R -> S(2)`.

)");
  page += names_of(pointwise);
  page += "\nThese take partial tensors too, where the call is linear or monotone in them:\n\n";
  page += partial_rows(pointwise);
  page += R"(
## Views

Every op of ATen that returns a view of its first argument. Where a dimension that is sharded has to be taken apart,
the elements are moved first: see [tensors.md](../tensors.md#in-place-and-views).

)";
  page += names_of(done(ops, "view"));
  page += R"(
## Random ops

Values depend on the seed and the global index of an element, not on the layout. With `out=` they are refused.

)";
  page += names_of(done(ops, "random"));
  page += R"(
## Lists of tensors

`_fused_*` and those `_foreach_*` that do the same to every element run tensor by tensor on the pieces. Other
`_foreach_*` ops are done as the single ops that they stand for.

)";
  page += names_of(done(ops, "each"));
  page += R"(
## New tensors like another one

They are laid out like it where they have its sizes; R otherwise.

)";
  page += names_of(done(ops, "like"));
  page += R"(
## Refused

A distributed tensor cannot take other sizes or memory in place.

)";
  page += names_of(done(ops, "refused"));
  page += R"(
## Without a rule

These run on full tensors, and are proven to do so rightly; so do all that are named nowhere on this page.

)";
  page += names_of(unruled);
  if (!missing.empty()) page += concat('\n', missing_rows(missing));
  return page;
}

}  // namespace intarsia::tools
