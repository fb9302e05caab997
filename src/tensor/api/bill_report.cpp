#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "draw/svg.h"
#include "intarsia/communication.h"
#include "plan/report.h"

namespace intarsia {
namespace {

using draw::escaped;

constexpr std::string_view kStyle = R"(
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em; color: #222; }
h1 { font-size: 1.4em; margin-bottom: 0; }
h2 { font-size: 1.1em; margin-top: 1.6em; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: 2px 12px 2px 0; white-space: nowrap; }
th { border-bottom: 1px solid #888; font-weight: 600; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: inline-block; height: 0.8em; background: #4c78a8; vertical-align: baseline; }
.implicit { color: #b03a2e; }
.grey { color: #777; }
)";

std::string bytes_of(std::uint64_t bytes) { return bytes_text(static_cast<std::int64_t>(bytes)); }

std::string bar(std::uint64_t bytes, std::uint64_t of) {
  constexpr double kWidest = 240;  // pixels
  const double width = of == 0 ? 0 : kWidest * static_cast<double>(bytes) / static_cast<double>(of);
  return concat("<span class=\"bar\" style=\"width:", static_cast<int>(width + 0.5),
                "px\"></span>");
}

struct Sum {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
};

/// A table of the sums by what `key_of` says, the largest first.
template <class KeyOf>
std::string sums_table(const Bill& bill, std::string_view title, const KeyOf& key_of) {
  std::map<std::string, Sum> sums;
  for (const BillEntry& e : bill.entries) {
    Sum& sum = sums[key_of(e)];
    sum.count += e.count;
    sum.bytes += e.bytes;
  }
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  std::string out = concat("<h2>By ", title, "</h2>\n<table>\n");
  for (const auto& [key, sum] : rows) {
    out += concat("<tr><td>", escaped(key), "</td><td class=\"n\">", sum.count,
                  "</td><td class=\"n\">", bytes_of(sum.bytes), "</td><td>",
                  bar(sum.bytes, bill.bytes()), "</td></tr>\n");
  }
  return out + "</table>\n";
}

std::string direction(const BillEntry& e) { return e.backward ? "backward" : "forward"; }

std::string entry_row(const BillEntry& e, std::uint64_t all_bytes) {
  std::string why = e.implicit ? "<span class=\"implicit\">implicit</span>" : "asked for";
  if (e.fallback) why += ", <span class=\"implicit\">no rule</span>";
  std::string out = "<tr>";
  for (const std::string& text : {e.transition, e.axis, e.tensor, e.op, direction(e), e.module}) {
    out += concat("<td>", escaped(text), "</td>");
  }
  return out + concat("<td>", why, "</td><td class=\"n\">", e.count, "</td><td class=\"n\">",
                      e.calls, "</td><td class=\"n\">", bytes_of(e.bytes), "</td><td>",
                      bar(e.bytes, all_bytes), "</td></tr>\n");
}

}  // namespace

std::string Bill::to_json() const {
  nlohmann::ordered_json out;
  out["entries"] = nlohmann::ordered_json::array();
  for (const BillEntry& e : entries) {
    out["entries"].push_back({{"op", e.op},
                              {"tensor", e.tensor},
                              {"module", e.module},
                              {"axis", e.axis},
                              {"transition", e.transition},
                              {"implicit", e.implicit},
                              {"backward", e.backward},
                              {"fallback", e.fallback},
                              {"count", e.count},
                              {"bytes", e.bytes},
                              {"calls", e.calls}});
  }
  out["count"] = count();
  out["bytes"] = bytes();
  out["calls"] = calls();
  return out.dump(1);
}

std::string Bill::to_html(std::string_view title) const {
  const std::string name = escaped(title);
  std::string out = concat("<!DOCTYPE html>\n<html><head><meta charset=\"utf-8\"><title>", name,
                           "</title>\n<style>", kStyle, "</style></head><body>\n<h1>", name,
                           "</h1>\n<p>", count(), " moves in ", calls(), " calls of the backend, ",
                           bytes_of(bytes()), " handed over: ", escaped(transitions()), "</p>\n");
  out += sums_table(*this, "axis", [](const BillEntry& e) { return e.axis; });
  out += sums_table(*this, "transition",
                    [](const BillEntry& e) { return concat(e.transition, ", ", direction(e)); });
  out += sums_table(*this, "op", [](const BillEntry& e) { return e.op; });
  out += sums_table(*this, "module", [](const BillEntry& e) {
    return e.module.empty() ? std::string("(outside of modules)") : e.module;
  });
  std::vector<BillEntry> sorted = entries;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const BillEntry& a, const BillEntry& b) { return a.bytes > b.bytes; });
  out +=
      "<h2>Entries</h2>\n<table>\n<tr><th>transition</th><th>axis</th><th>tensor</th><th>op</th>"
      "<th>direction</th><th>module</th><th>why</th><th class=\"n\">moves</th>"
      "<th class=\"n\">calls</th><th class=\"n\">bytes</th><th></th></tr>\n";
  for (const BillEntry& e : sorted) out += entry_row(e, bytes());
  return out + "</table>\n</body></html>\n";
}

}  // namespace intarsia
