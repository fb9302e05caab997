#include "checkpoint/format/safetensors.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/format/json.h"
#include "checkpoint/format/stored_dtype.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

constexpr std::string_view kWhere = "checkpoint";
constexpr std::string_view kMetadata = "__metadata__";

/// The JSON for tensors that begin at `data_begin`. Written as text at once: files may hold very
/// many tensors.
std::string json_text(const FileHeader& header) {
  std::string out = "{";
  const auto add = [&](std::string_view name, std::string_view value) {
    out += concat(out.size() > 1 ? "," : "", text_json(name), ':', value);
  };
  if (!header.metadata.empty()) add(kMetadata, Json(header.metadata).dump());
  for (const FileTensor& tensor : header.tensors) {
    add(tensor.name,
        concat("{\"dtype\":\"", stored_as(tensor.dtype).name, "\",\"shape\":[", join(tensor.shape),
               "],\"data_offsets\":[", tensor.begin - header.data_begin, ',',
               tensor.end - header.data_begin, "]}"));
  }
  return out + '}';
}

/// Two parts may have one name only if a tensor is called like a part of another.
void check_names(const FileHeader& header) {
  std::unordered_set<std::string_view> names{kMetadata};
  for (const FileTensor& tensor : header.tensors) {
    if (names.insert(tensor.name).second) continue;
    fail<ValueError>(kWhere, "'", tensor.name, "' would stand twice in one file; give ",
                     tensor.name == kMetadata ? "it" : "one of the two", " another name");
  }
}

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
}

Shape shape_of(const Field& field) {
  const std::size_t dims = field.list().size();
  if (dims > kMaxDims) field.refuse(concat("has ", dims, " sizes, more than ", kMaxDims));
  Shape shape;
  for (std::size_t d = 0; d < dims; ++d) shape.push_back(field.item(d).integer());
  try {
    check_shape(kWhere, shape);
  } catch (const ValueError&) {
    field.refuse("holds more than 2^56 elements");
  }
  return shape;
}

FileTensor tensor_of(const Field& field, const std::string& name, const FileHeader& header) {
  field.only({"dtype", "shape", "data_offsets"});
  FileTensor out{.name = name, .shape = shape_of(field.at("shape"))};
  const Field dtype = field.at("dtype");
  const auto known = dtype_of_stored(dtype.text());
  if (!known) dtype.refuse(concat("is '", dtype.text(), "', which this version does not read"));
  out.dtype = *known;
  const Field offsets = field.at("data_offsets");
  if (offsets.list().size() != 2) offsets.refuse("is not a pair");
  const std::uint64_t room = header.file_bytes - header.data_begin;
  const auto begin = static_cast<std::uint64_t>(offsets.item(0).integer());
  const auto end = static_cast<std::uint64_t>(offsets.item(1).integer());
  if (begin > end || end > room) {
    offsets.refuse(concat("are ", begin, " and ", end, ", of ", room, " bytes of data"));
  }
  if (end - begin != bytes_of(out.dtype, out.shape)) {
    offsets.refuse(concat("have ", end - begin, " bytes between them, and ", dtype.text(), '[',
                          join(out.shape), "] needs ", bytes_of(out.dtype, out.shape)));
  }
  out.begin = header.data_begin + begin;
  out.end = header.data_begin + end;
  return out;
}

std::map<std::string, std::string> metadata_of(const Field& field) {
  std::map<std::string, std::string> out;
  for (const auto& [name, ignored] : field.object()) out[name] = field.at(name).text();
  return out;
}

void check_without_holes(std::string_view file, const FileHeader& header) {
  std::uint64_t at = header.data_begin;
  for (const FileTensor& tensor : header.tensors) {
    if (tensor.begin != at) {
      fail<FileError>(kWhere, file, ": the bytes ", std::min(at, tensor.begin), " to ",
                      std::max(at, tensor.begin), " before '", tensor.name, "' belong to ",
                      tensor.begin > at ? "no tensor" : "two tensors");
    }
    at = tensor.end;
  }
  if (at != header.file_bytes) {
    fail<FileError>(kWhere, file, ": the last ", header.file_bytes - at,
                    " bytes belong to no tensor");
  }
}

}  // namespace

FileTensor file_tensor(std::string name, DType dtype, const Shape& shape) {
  FileTensor out{.name = std::move(name), .dtype = dtype, .shape = shape};
  const StoredDType stored = stored_as(dtype);
  if (stored.pairs) {
    if (out.shape.size() == kMaxDims) {
      fail<ValueError>(kWhere, "'", out.name, "' has ", kMaxDims,
                       " dimensions of complex numbers, which need one more in a file");
    }
    out.dtype = *dtype_of_stored(stored.name);
    out.shape.push_back(2);
  }
  return out;
}

FileHeader place_tensors(std::vector<FileTensor> tensors,
                         std::map<std::string, std::string> metadata) {
  FileHeader header{.tensors = std::move(tensors), .metadata = std::move(metadata)};
  check_names(header);
  std::uint64_t at = 0;
  for (FileTensor& tensor : header.tensors) {
    tensor.begin = at;
    at = tensor.end = at + bytes_of(tensor.dtype, tensor.shape);
  }
  // Offsets are written relative to the data, so that the length of the text is known already.
  const std::uint64_t length = kLengthBytes + json_text(header).size();
  if (length > kMostHeaderBytes) {
    fail<ValueError>(kWhere, "the header of a safetensors file would have ", length,
                     " bytes, more than ", kMostHeaderBytes, "; save fewer or longer tensors");
  }
  header.data_begin = aligned(length);
  for (FileTensor& tensor : header.tensors) {
    tensor.begin += header.data_begin;
    tensor.end += header.data_begin;
  }
  header.file_bytes = header.data_begin + at;
  return header;
}

std::string header_text(const FileHeader& header) {
  std::string out(kLengthBytes, '\0');
  std::uint64_t length = header.data_begin - kLengthBytes;
  for (std::size_t i = 0; i < kLengthBytes; ++i, length >>= 8) {
    out[i] = static_cast<char>(length & 0xff);
  }
  out += json_text(header);
  out.resize(header.data_begin, ' ');
  return out;
}

std::uint64_t header_bytes(std::string_view file, std::string_view first,
                           std::uint64_t file_bytes) {
  if (file_bytes < kLengthBytes || first.size() < kLengthBytes) {
    fail<FileError>(kWhere, file, ": ", file_bytes, " bytes are too few for a safetensors file");
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | static_cast<std::uint8_t>(first[i]);
  }
  if (length > kMostHeaderBytes || length > file_bytes - kLengthBytes) {
    fail<FileError>(kWhere, file, ": the header should have ", length, " bytes, of a file of ",
                    file_bytes);
  }
  return kLengthBytes + length;
}

FileHeader parse_header(std::string_view file, std::string_view header, std::uint64_t file_bytes) {
  FileHeader out;
  out.file_bytes = file_bytes;
  out.data_begin = header_bytes(file, header, file_bytes);
  if (header.size() < out.data_begin) {
    fail<FileError>(kWhere, file, ": ", header.size(), " bytes of the header were given, it has ",
                    out.data_begin);
  }
  const std::string_view text = header.substr(kLengthBytes, out.data_begin - kLengthBytes);
  if (text.empty() || text[0] != '{') fail<FileError>(kWhere, file, ": the header is no object");
  const Json json = parse_json(file, text);
  const Field fields{json, file, {}};
  for (const auto& [name, ignored] : fields.object()) {
    if (name == kMetadata) {
      out.metadata = metadata_of(fields.at(name));
    } else {
      out.tensors.push_back(tensor_of(fields.at(name), name, out));
    }
  }
  std::sort(out.tensors.begin(), out.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  check_without_holes(file, out);
  return out;
}

}  // namespace intarsia::checkpoint
