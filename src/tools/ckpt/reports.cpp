#include "tools/ckpt/reports.h"

#include <algorithm>
#include <map>

#include "base/text.h"
#include "checkpoint/files/files.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/plan/write_plan.h"
#include "checkpoint/session/load_step.h"
#include "checkpoint/store/all_files.h"
#include "intarsia/error.h"
#include "intarsia/pattern.h"
#include "tools/ckpt/opened.h"

namespace intarsia::tools {
namespace {

using checkpoint::Difference;
using checkpoint::Json;
using checkpoint::Manifest;

std::string padded_right(const std::string& text, std::size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

/// Rows of texts as columns.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::map<std::size_t, std::size_t> widths;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c + 1 < row.size(); ++c) {
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  std::string out;
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      out += c + 1 < row.size() ? padded_right(row[c], widths[c]) + "  " : row[c];
    }
    out += '\n';
  }
  return out;
}

std::uint64_t tensor_bytes(const Manifest& manifest) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : manifest.tensors) {
    bytes += checkpoint::bytes_of(tensor.type.dtype, tensor.type.shape);
  }
  return bytes;
}

/// Which rank wrote what of a tensor.
Json writers_of(const checkpoint::WritePlan& plan, std::size_t tensor, const TensorType& type) {
  Json out = Json::array();
  const Boxes all = boxes(Layout::replicated(Mesh()), type.shape, {});
  for (const auto& holder : plan.holders(tensor, checkpoint::part_of(all))) {
    out.push_back({{"rank", holder.rank}, {"part", holder.part.to_string()}});
  }
  return out;
}

}  // namespace

Json list_report(const std::string& folder) {
  checkpoint::Files& files = checkpoint::all_files();
  Json out = Json::array();
  for (const std::int64_t step : checkpoint::steps_in(files, folder)) {
    Json row{{"step", step}};
    try {
      const Manifest manifest =
          checkpoint::read_manifest(files, checkpoint::folder_of_step(files, folder, step));
      row["bytes"] = tensor_bytes(manifest);
      row["tensors"] = manifest.tensors.size();
      row["ranks"] = manifest.world;
    } catch (const FileError& error) {
      row["damaged"] = error.what();
    }
    out.push_back(std::move(row));
  }
  return out;
}

std::string list_text(const Json& report) {
  if (report.empty()) return "no steps\n";
  std::vector<std::vector<std::string>> rows;
  for (const Json& row : report) {
    const std::string step = concat("step ", row["step"].get<std::int64_t>());
    if (row.contains("damaged")) {
      rows.push_back({step, "damaged", row["damaged"].get<std::string>()});
      continue;
    }
    rows.push_back({step, bytes_text(row["bytes"].get<std::uint64_t>()),
                    concat(row["tensors"].get<std::size_t>(), " tensors by ",
                           row["ranks"].get<std::int64_t>(), " ranks")});
  }
  return table(rows);
}

Json show_report(const checkpoint::Opened& opened, const std::string& pattern, bool writers) {
  const Manifest& manifest = opened.manifest;
  const bool is_ours = manifest.file_names.empty();
  Json out{{"folder", opened.folder},
           {"bytes", tensor_bytes(manifest)},
           {"values", manifest.values},
           {"tensors", Json::array()},
           {"files", Json::array()}};
  if (is_ours) out["step"] = manifest.step;
  if (is_ours) out["ranks"] = manifest.world;
  const checkpoint::WritePlan plan(manifest.tensors);
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const auto& [name, type] = manifest.tensors[t];
    if (!pattern.empty() && !matches(name, pattern)) continue;
    Json row{{"name", name}, {"type", checkpoint::sizes_text(type.dtype, type.shape)}};
    if (is_ours) row["layout"] = type.layout.to_string();
    if (writers) row["writers"] = writers_of(plan, t, type);
    out["tensors"].push_back(std::move(row));
  }
  for (const auto& file : manifest.files) {
    const std::string name = is_ours ? checkpoint::data_file_name(file.rank, manifest.world)
                                     : manifest.file_names[static_cast<std::size_t>(file.rank)];
    out["files"].push_back({{"name", name}, {"bytes", file.bytes}});
  }
  return out;
}

std::string show_text(const Json& report) {
  std::string out = report["folder"].get<std::string>();
  if (report.contains("step")) {
    out += concat(": step ", report["step"].get<std::int64_t>(), " of ",
                  report["ranks"].get<std::int64_t>(), " ranks");
  }
  out += concat(", ", bytes_text(report["bytes"].get<std::uint64_t>()), " in ",
                report["files"].size(), " files\n\n");
  std::vector<std::vector<std::string>> rows;
  for (const Json& tensor : report["tensors"]) {
    rows.push_back({tensor["name"].get<std::string>(), tensor["type"].get<std::string>(),
                    tensor.value("layout", "")});
    if (!tensor.contains("writers")) continue;
    for (const Json& writer : tensor["writers"]) {
      rows.push_back({concat("  rank ", writer["rank"].get<std::int64_t>()), "",
                      writer["part"].get<std::string>()});
    }
  }
  out += table(rows);
  constexpr std::size_t kBar = 40;
  std::uint64_t most = 1;
  for (const Json& file : report["files"])
    most = std::max(most, file["bytes"].get<std::uint64_t>());
  out += '\n';
  rows.clear();
  for (const Json& file : report["files"]) {
    const auto bytes = file["bytes"].get<std::uint64_t>();
    const std::size_t bar =
        static_cast<std::size_t>(static_cast<double>(bytes) / static_cast<double>(most) * kBar);
    rows.push_back({file["name"].get<std::string>(),
                    std::string(std::max<std::size_t>(bar, 1), '#'), bytes_text(bytes)});
  }
  out += table(rows);
  if (report["values"].empty()) return out;
  out += '\n';
  rows.clear();
  for (const auto& [name, value] : report["values"].items()) {
    constexpr std::size_t kMost = 100;
    std::string text = value.dump();
    if (text.size() > kMost) text = concat(text.substr(0, kMost), "...");
    rows.push_back({name, text});
  }
  return out + table(rows);
}

Json diff_report(const std::vector<Difference>& differences) {
  using Kind = Difference::Kind;
  Json out = Json::array();
  for (const Difference& each : differences) {
    Json row{{"name", each.name}};
    switch (each.kind) {
      case Kind::only_first:
        row["only_in_first"] = each.first;
        break;
      case Kind::only_second:
        row["only_in_second"] = each.second;
        break;
      case Kind::type:
      case Kind::value:
        row["first"] = each.first;
        row["second"] = each.second;
        break;
      case Kind::values:
        row["elements"] = each.elements;
        row["of"] = each.of;
        if (each.greatest) row["greatest"] = *each.greatest;
        break;
    }
    out.push_back(std::move(row));
  }
  return out;
}

std::string diff_text(const Json& report) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& row : report) {
    std::string text;
    if (row.contains("only_in_first")) {
      text = concat("only in the first: ", row["only_in_first"].get<std::string>());
    } else if (row.contains("only_in_second")) {
      text = concat("only in the second: ", row["only_in_second"].get<std::string>());
    } else if (row.contains("elements")) {
      text = concat(row["elements"].get<std::int64_t>(), " of ", row["of"].get<std::int64_t>(),
                    " elements differ");
      if (row.contains("greatest") && row["greatest"].is_number()) {
        text += concat(", at most by ", row["greatest"].get<double>());
      }
    } else {
      text = concat(row["first"].get<std::string>(), " and ", row["second"].get<std::string>());
    }
    rows.push_back({row["name"].get<std::string>(), text});
  }
  return rows.empty() ? "equal\n" : table(rows);
}

}  // namespace intarsia::tools
