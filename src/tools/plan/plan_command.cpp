#include "tools/plan/plan_command.h"

#include <array>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"
#include "intarsia/tensor_type.h"
#include "plan/report.h"
#include "tools/common/arguments.h"
#include "tools/plan/plan_picture.h"

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

/// `8,12` or `[8, 12]`; nothing for a scalar.
Shape read_shape(const std::string& text) {
  Cursor cursor("--shape", text);
  const bool has_bracket = cursor.accept("[");
  const auto ends = [&] { return has_bracket ? cursor.peek("]") : cursor.done(); };
  Shape shape;
  while (!ends()) {
    if (!shape.empty()) cursor.expect(",");
    const std::int64_t size = cursor.integer();
    if (shape.size() == kMaxDims) {
      fail<ValueError>("--shape", '\'', text, "' has more than ", kMaxDims, " dimensions");
    }
    shape.push_back(size);
  }
  if (has_bracket) cursor.expect("]");
  cursor.end();
  check_shape("--shape", shape);
  return shape;
}

std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::b1:
    case DType::u8:
    case DType::i8:
    case DType::f8e4m3:
    case DType::f8e5m2:
      return 1;
    case DType::u16:
    case DType::i16:
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::u32:
    case DType::i32:
    case DType::f32:
    case DType::c32:
      return 4;
    case DType::u64:
    case DType::i64:
    case DType::f64:
    case DType::c64:
      return 8;
    case DType::c128:
      return 16;
  }
  return 0;
}

std::int64_t read_dtype(const std::string& text) {
  const auto dtype = parse_dtype(text);
  if (!dtype) {
    fail<ValueError>("--dtype", "there is no dtype '", text,
                     "'; it is bool, u8 to u64, i8 to i64, f8e4m3, f8e5m2, f16, bf16, f32, f64, "
                     "c32, c64 or c128, or give --element-size");
  }
  return size_of(*dtype);
}

Question read(const Arguments& a) {
  const Mesh mesh = read_mesh(a.mesh);
  Question out;
  out.shape = read_shape(a.shape);
  LayoutOptions options;
  options.dims = out.shape.size();
  out.from = Layout::parse(a.from, mesh, options);
  out.to = Layout::parse(a.to, mesh, options);
  out.element_size = a.element_size > 0 ? a.element_size : read_dtype(a.dtype);
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
  if (format == "svg") return to_svg(report);
  return to_text(report);
}

int write(const std::string& text, const std::string& path) {
  if (path.empty()) {
    std::cout << text;
    return 0;
  }
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    std::cerr << "intarsia: [plan] cannot write " << path << '\n';
    return 1;
  }
  return 0;
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
  return write(written(report, a.format), a.out);
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
