#include "checkpoint/format/manifest.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/text.h"
#include "checkpoint/format/hashes.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::string_view kWhere = "checkpoint";
constexpr std::string_view kNative = "intarsia.native";
constexpr std::string_view kHf = "intarsia.hf";
constexpr std::int64_t kVersion = 1;
/// The last line: `"hash":"0123456789abcdef"}` and a newline.
constexpr std::string_view kHashBegin = "\"hash\":\"";
constexpr std::string_view kHashEnd = "\"}\n";
constexpr std::size_t kLastLine = kHashBegin.size() + 16 + kHashEnd.size();

/// One line of the list of tensors. Written as text at once: there may be very many.
class TensorRows {
 public:
  std::string operator()(const SavedTensor& tensor) {
    std::string& layout = layouts_[tensor.type.layout.id()];
    if (layout.empty()) layout = text_json(tensor.type.layout.to_string());
    return concat("{\"dtype\":\"", to_text(tensor.type.dtype), "\",\"layout\":", layout,
                  ",\"name\":", text_json(tensor.name), ",\"shape\":[", join(tensor.type.shape),
                  "]}");
  }

 private:
  std::unordered_map<const void*, std::string> layouts_;  // few, and long
};

SavedTensor tensor_of(const Field& field) {
  field.only({"name", "dtype", "shape", "layout"});
  SavedTensor out{field.at("name").text(), {}};
  const Field dtype = field.at("dtype");
  const auto known = parse_dtype(dtype.text());
  if (!known) dtype.refuse(concat("is '", dtype.text(), "', which is no element type"));
  out.type.dtype = *known;
  const Field shape = field.at("shape");
  if (shape.list().size() > kMaxDims) shape.refuse("has too many sizes");
  for (std::size_t d = 0; d < shape.list().size(); ++d) {
    out.type.shape.push_back(shape.item(d).integer());
  }
  try {
    out.type.layout = Layout::parse(field.at("layout").text());
    check_shape(kWhere, out.type.shape);
    check_dims(kWhere, out.type.layout, out.type.shape.size());
  } catch (const ValueError& error) {
    field.refuse(concat("('", out.name, "') cannot be: ", error.what()));
  }
  if (out.type.layout.has_partial()) field.refuse(concat("('", out.name, "') is a partial value"));
  return out;
}

SavedFile file_of(const Field& field) {
  field.only({"rank", "bytes", "hashes"});
  return {field.at("rank").integer(), static_cast<std::uint64_t>(field.at("bytes").integer()),
          field.at("hashes").hash()};
}

std::string numbered(std::int64_t rank, std::int64_t world, std::string_view ending) {
  constexpr std::size_t kDigits = 5;
  return concat(padded(rank, kDigits), "-of-", padded(world, kDigits), ending);
}

/// The rows of a list, one a line: a manifest is read by people too.
template <class Rows, class ToText>
void append_rows(std::string& out, std::string_view name, const Rows& rows, ToText to_text) {
  out += concat('"', name, "\":[");
  bool first = true;
  for (const auto& row : rows) {
    out += concat(std::exchange(first, false) ? "\n " : ",\n ", to_text(row));
  }
  out += "],\n";
}

void check_names(const Manifest& manifest, std::string_view file) {
  std::set<std::string_view> names;
  for (const SavedTensor& tensor : manifest.tensors) {
    if (!names.insert(tensor.name).second) {
      fail<FileError>(kWhere, file, ": the tensor '", tensor.name, "' comes twice");
    }
    if (tensor.type.layout.mesh().highest() >= manifest.world) {
      fail<FileError>(kWhere, file, ": '", tensor.name, "' is laid out over ",
                      tensor.type.layout.mesh(), ", and ", manifest.world, " ranks saved");
    }
  }
  std::int64_t least = 0;
  for (const SavedFile& each : manifest.files) {
    if (each.rank < least || each.rank >= manifest.world) {
      fail<FileError>(kWhere, file, ": the file of rank ", each.rank, " is out of order or one of ",
                      "no rank");
    }
    least = each.rank + 1;
  }
}

}  // namespace

std::string tensor_lines(std::span<const SavedTensor> tensors) {
  std::string out;
  append_rows(out, "tensors", tensors, TensorRows());
  return out;
}

std::string manifest_text(const std::string& tensor_lines, std::int64_t step, std::int64_t world,
                          std::span<const SavedFile> files, const Json& values,
                          std::optional<std::uint64_t> hf_file_bytes,
                          const std::string& data_folder) {
  std::string out = concat("{\"format\":\"", hf_file_bytes ? kHf : kNative,
                           "\",\"version\":", kVersion, ",\"step\":", step, ",\"world\":", world,
                           hf_file_bytes ? concat(",\"file_bytes\":", *hf_file_bytes) : "",
                           data_folder.empty() ? "" : concat(",\"data\":\"", data_folder, '"'),
                           ",\n", tensor_lines);
  append_rows(out, "files", files, [](const SavedFile& each) {
    return concat("{\"bytes\":", each.bytes, ",\"hashes\":\"", hash_to_text(each.hashes),
                  "\",\"rank\":", each.rank, '}');
  });
  out += concat("\"values\":", values.dump(), ",\n");
  return concat(out, kHashBegin, hash_to_text(hash_of(out)), kHashEnd);
}

std::map<std::string_view, std::size_t> Manifest::places() const {
  std::map<std::string_view, std::size_t> out;
  for (std::size_t t = 0; t < tensors.size(); ++t) out[tensors[t].name] = t;
  return out;
}

std::string Manifest::to_text() const {
  return manifest_text(tensor_lines(tensors), step, world, files, values, hf_file_bytes,
                       data_folder);
}

Manifest Manifest::parse(std::string_view file, std::string_view text) {
  if (text.size() < kLastLine) fail<FileError>(kWhere, file, ": too short for a manifest");
  const std::string_view body = text.substr(0, text.size() - kLastLine);
  if (text.substr(body.size()) != concat(kHashBegin, hash_to_text(hash_of(body)), kHashEnd)) {
    fail<FileError>(kWhere, file, ": damaged: its last line is not the hash of the lines before");
  }
  const Json json = parse_json(file, text);
  const Field fields{json, file, {}};
  const Field format = fields.at("format");
  if (format.text() != kNative && format.text() != kHf) {
    format.refuse(concat("is '", format.text(), "', not '", kNative, "' or '", kHf, "'"));
  }
  if (const Field version = fields.at("version"); version.integer() != kVersion) {
    version.refuse(concat("is ", version.integer(), ", and this library reads ", kVersion,
                          "; use a newer one"));
  }
  Manifest out;
  std::vector<std::string_view> names{"format",  "version", "step",   "world",
                                      "tensors", "files",   "values", "hash"};
  if (format.text() == kHf) {
    out.hf_file_bytes = static_cast<std::uint64_t>(fields.at("file_bytes").integer(1));
    names.emplace_back("file_bytes");
  }
  if (json.contains("data")) {
    const Field data = fields.at("data");
    static_cast<void>(data.hash());
    out.data_folder = data.text();
    names.emplace_back("data");
  }
  fields.only(names);
  out.step = fields.at("step").integer();
  out.world = fields.at("world").integer(1);
  const Field tensors = fields.at("tensors");
  for (std::size_t i = 0; i < tensors.list().size(); ++i) {
    out.tensors.push_back(tensor_of(tensors.item(i)));
  }
  const Field files = fields.at("files");
  for (std::size_t i = 0; i < files.list().size(); ++i) {
    out.files.push_back(file_of(files.item(i)));
  }
  out.values = fields.at("values").object();
  check_names(out, file);
  return out;
}

std::string padded(std::int64_t number, std::size_t digits) {
  const std::string text = std::to_string(number);
  return std::string(digits - std::min(digits, text.size()), '0') + text;
}

std::string step_name(std::int64_t step) {
  constexpr std::size_t kDigits = 8;
  return concat("step-", padded(step, kDigits));
}

std::string data_file_name(std::int64_t rank, std::int64_t world) {
  return numbered(rank, world, ".safetensors");
}

std::string hash_file_name(std::int64_t rank, std::int64_t world) {
  return numbered(rank, world, ".hashes");
}

}  // namespace intarsia::checkpoint
