#include "tools/plan/plan_command.h"

#include <array>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "draw/plan_picture.h"
#include "intarsia/error.h"
#include "layout/element_size.h"
#include "plan/report.h"
#include "tools/common/arguments.h"

namespace intarsia::tools {
namespace {

constexpr int kNoPlan = 1;
constexpr int kWrongArguments = 2;

struct Arguments {
  std::string mesh;
  std::string shape;
  std::string from;
  std::string to;
  std::string dtype = "f32";
  std::int64_t element_size = 0;  // 0: that of the dtype
  std::string peak_bytes;
  std::string topology;
  std::string format = "text";
  std::string out;
};

/// The arguments, read.
struct Question {
  Layout from;
  Layout to;
  Shape shape;
  std::int64_t element_size = 4;
  Topology topology;
  std::optional<std::int64_t> peak_bytes;
};

// ---- reading ----

Question read(const Arguments& a) {
  const Mesh mesh = read_mesh(a.mesh);
  Question out;
  out.shape = read_shape(a.shape);
  LayoutOptions options;
  options.dims = out.shape.size();
  out.from = Layout::parse(a.from, mesh, options);
  out.to = Layout::parse(a.to, mesh, options);
  out.element_size = a.element_size > 0 ? a.element_size : element_size(read_dtype(a.dtype));
  out.topology = a.topology.empty() ? Topology::standard() : Topology::load(a.topology);
  if (!a.peak_bytes.empty()) out.peak_bytes = read_bytes("--peak-bytes", a.peak_bytes);
  return out;
}

// ---- answering ----

/// Why there is no plan: an axis whose partial values would become those of another kind.
std::string no_plan_text(const Layout& from, const Layout& to) {
  std::string where;
  for (std::size_t a = 0; a < from.mesh().axes() && where.empty(); ++a) {
    const Placement& have = from.placement(a);
    const Placement& want = to.placement(a);
    if (!have.is_partial() || !want.is_partial() || have == want) continue;
    where = concat("along ", from.mesh().name(a), ", partial values of ", have,
                   " cannot become partial values of ", want);
  }
  return concat("no plan leads from ", from.placements_text(), " to ", to.placements_text(), ": ",
                where, "; reduce them first, to R or S");
}

std::string written(const PlanReport& report, const std::string& format) {
  if (format == "json") return concat(to_json(report).dump(2), '\n');
  if (format == "svg") return draw::to_svg(report);
  return to_text(report);
}

int refuse(std::string_view why, int exit_code) {
  std::cerr << "intarsia: " << why << '\n';
  return exit_code;
}

int run(const Arguments& a) {
  Question question;
  try {
    question = read(a);
  } catch (const ValueError& error) {
    return refuse(error.what(), kWrongArguments);
  }
  std::optional<Plan> plan;
  try {
    plan = make_plan(question.from, question.to, question.shape,
                     {question.element_size, &question.topology, question.peak_bytes});
  } catch (const ValueError& error) {
    return refuse(error.what(), kNoPlan);
  }
  if (!plan) return refuse(concat("[plan] ", no_plan_text(question.from, question.to)), kNoPlan);
  PlanReport report(std::move(*plan));
  if (a.element_size == 0) report.dtype = a.dtype;
  report.topology = a.topology;
  report.allowed_bytes = question.peak_bytes;
  return write_output("plan", written(report, a.format), a.out);
}

}  // namespace

std::function<int()> add_plan(CLI::App& command) {
  const auto a = std::make_shared<Arguments>();
  const auto text = [&](const char* name, std::string& value, const char* type, const char* what) {
    return command.add_option(name, value, what)->type_name(type);
  };
  text("--mesh", a->mesh, "MESH", "The ranks: [dp=2,tp=4], with or without brackets")->required();
  text("--shape", a->shape, "SIZES", "Of the full tensor: 8,12")->required();
  text("--from", a->from, "LAYOUT", "One placement for each axis: S(0),R or 'S(0),S(0) | 0:tp>dp'")
      ->required();
  text("--to", a->to, "LAYOUT", "The same for the layout to reach")->required();
  CLI::Option* dtype =
      text("--dtype", a->dtype, "NAME", "bool, i64, bf16, f32, f64 and others; f32 unless told");
  command.add_option("--element-size", a->element_size, "Bytes of an element, in place of --dtype")
      ->type_name("N")
      ->check(CLI::Range(1, 1024))
      ->excludes(dtype);
  text("--peak-bytes", a->peak_bytes, "N",
       "The most that a rank may hold: 65536, 64KiB, 8MiB, 2GiB");
  text("--topology", a->topology, "FILE", "What plans are priced by, as JSON");
  text("--format", a->format, "WORD", "How to print it; text unless told")
      ->check(CLI::IsMember({"text", "json", "svg"}));
  text("--out", a->out, "FILE", "Write there, not to the standard output");
  command.footer(
      "Placements: R the same on all ranks along the axis, S(0) sharded along dimension 0,\n"
      "SS(0,2) sharded in each of two blocks, P(sum) a partial value of a sum, P(max) of a\n"
      "maximum. Needs no ranks and no torch.\n"
      "\n"
      "Exit codes: 0 there is a plan, 1 there is none (kinds of partial values differ, or no plan\n"
      "fits into --peak-bytes) or it could not be written, 2 wrong arguments.");
  return [a] { return run(*a); };
}

}  // namespace intarsia::tools
