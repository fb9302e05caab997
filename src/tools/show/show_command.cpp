#include "tools/show/show_command.h"

#include <iostream>
#include <map>

#include "intarsia/error.h"
#include "intarsia/picture.h"
#include "tools/common/arguments.h"

namespace intarsia::tools {
namespace {

constexpr int kWrongArguments = 2;

struct Arguments {
  std::string mesh;
  std::string shape;
  std::string layout;
  std::string dtype = "f32";
  std::string format = "text";
  std::string out;
};

TensorType read(const Arguments& a) {
  const Mesh mesh = read_mesh(a.mesh);
  TensorType type;
  type.shape = read_shape(a.shape);
  LayoutOptions options;
  options.dims = type.shape.size();
  type.layout = Layout::parse(a.layout, mesh, options);
  type.dtype = read_dtype(a.dtype);
  return type;
}

int run(const Arguments& a) {
  static const std::map<std::string, PictureFormat> formats{
      {"text", PictureFormat::text}, {"svg", PictureFormat::svg}, {"html", PictureFormat::html}};
  std::string made;
  try {
    made = picture(read(a), formats.at(a.format));
  } catch (const ValueError& error) {
    std::cerr << "intarsia: " << error.what() << '\n';
    return kWrongArguments;
  }
  return write_output("show", made, a.out);
}

}  // namespace

std::function<int()> add_show(CLI::App& command) {
  const auto a = std::make_shared<Arguments>();
  const auto text = [&](const char* name, std::string& value, const char* type, const char* what) {
    return command.add_option(name, value, what)->type_name(type);
  };
  text("--mesh", a->mesh, "MESH", "The ranks: [dp=2,tp=4], with or without brackets")->required();
  text("--shape", a->shape, "SIZES", "Of the full tensor: 8,12")->required();
  text("--layout", a->layout, "LAYOUT",
       "One placement for each axis: S(0),R or 'S(0),S(0) | 0:tp>dp'")
      ->required();
  text("--dtype", a->dtype, "NAME", "bool, i64, bf16, f32, f64 and others; f32 unless told");
  text("--format", a->format, "WORD", "How to print it; text unless told")
      ->check(CLI::IsMember({"text", "svg", "html"}));
  text("--out", a->out, "FILE", "Write there, not to the standard output");
  command.footer(
      "Needs no ranks and no torch. In programs: picture.h in C++, intarsia.show(tensor) in "
      "Python.\n"
      "\n"
      "Exit codes: 0 it was printed, 1 it could not be written, 2 wrong arguments.");
  return [a] { return run(*a); };
}

}  // namespace intarsia::tools
