#include "checkpoint/inspect/dcp_folder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/text.h"
#include "checkpoint/format/pickle.h"
#include "checkpoint/format/stored_dtype.h"
#include "checkpoint/format/zip.h"
#include "checkpoint/plan/copy_runs.h"
#include "intarsia/boxes.h"
#include "intarsia/error.h"

namespace intarsia::checkpoint {
namespace {

using Kind = Pickled::Kind;

constexpr std::string_view kWhere = "checkpoint";
constexpr std::string_view kMetadataName = ".metadata";
constexpr std::uint64_t kMostPickleBytes = std::uint64_t{4} << 30;

/// How torch calls its types and the memory of tensors of them.
struct TypeName {
  std::string_view name;
  std::string_view storage;
  DType dtype;
};
constexpr std::array<TypeName, 18> kTypes{{{"bool", "BoolStorage", DType::b1},
                                           {"uint8", "ByteStorage", DType::u8},
                                           {"uint16", "", DType::u16},
                                           {"uint32", "", DType::u32},
                                           {"uint64", "", DType::u64},
                                           {"int8", "CharStorage", DType::i8},
                                           {"int16", "ShortStorage", DType::i16},
                                           {"int32", "IntStorage", DType::i32},
                                           {"int64", "LongStorage", DType::i64},
                                           {"float8_e4m3fn", "", DType::f8e4m3},
                                           {"float8_e5m2", "", DType::f8e5m2},
                                           {"float16", "HalfStorage", DType::f16},
                                           {"bfloat16", "BFloat16Storage", DType::bf16},
                                           {"float32", "FloatStorage", DType::f32},
                                           {"float64", "DoubleStorage", DType::f64},
                                           {"complex32", "", DType::c32},
                                           {"complex64", "ComplexFloatStorage", DType::c64},
                                           {"complex128", "ComplexDoubleStorage", DType::c128}}};

const TypeName* type_named(std::string_view global) {
  constexpr std::string_view kTorch = "torch ";
  if (!global.starts_with(kTorch)) return nullptr;
  const std::string_view name = global.substr(kTorch.size());
  const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeName& each) {
    return each.name == name || (!each.storage.empty() && each.storage == name);
  });
  return found == kTypes.end() ? nullptr : &*found;
}

bool allowed_in_metadata(std::string_view global) {
  static const std::set<std::string_view> kKnown{
      "torch.distributed.checkpoint.metadata Metadata",
      "torch.distributed.checkpoint.metadata TensorStorageMetadata",
      "torch.distributed.checkpoint.metadata BytesStorageMetadata",
      "torch.distributed.checkpoint.metadata TensorProperties",
      "torch.distributed.checkpoint.metadata ChunkStorageMetadata",
      "torch.distributed.checkpoint.metadata MetadataIndex",
      "torch.distributed.checkpoint.metadata StorageMeta",
      "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING",
      "torch.distributed.checkpoint.filesystem _StorageInfo",
      "torch.serialization _get_layout",
      "torch Size",
      "pathlib PosixPath",
      "pathlib._local PosixPath",
      "collections OrderedDict"};
  return kKnown.contains(global) || type_named(global) != nullptr;
}

bool allowed_in_tensor(std::string_view global) {
  static const std::set<std::string_view> kKnown{"torch._utils _rebuild_tensor_v2",
                                                 "torch._utils _rebuild_tensor_v3",
                                                 "torch._utils _rebuild_parameter",
                                                 "torch.storage UntypedStorage",
                                                 "torch UntypedStorage",
                                                 "torch Size",
                                                 "collections OrderedDict"};
  return kKnown.contains(global) || type_named(global) != nullptr;
}

bool allowed_in_value(std::string_view global) { return global == "collections OrderedDict"; }

/// Values of a pickle, read strictly; errors name the file and what is read.
class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  [[noreturn]] void refuse(std::string_view what, std::string_view reason) const {
    fail<FileError>(kWhere, path_, ": ", what, " ", reason);
  }
  const Pickled& of_kind(const Pickled* value, Kind kind, std::string_view what) const {
    if (value == nullptr || !value->is(kind)) refuse(what, "is not as PyTorch writes it");
    return *value;
  }
  /// A field of an object's state.
  const Pickled* field(const Pickled& object, std::string_view name) const {
    const Pickled& state = of_kind(object.state(), Kind::dict, name);
    return state.find(name);
  }
  const Pickled& object_of(const Pickled* value, std::string_view global) const {
    if (value == nullptr || !value->is_object_of(global)) {
      refuse(global, "is not where PyTorch writes it");
    }
    return *value;
  }
  std::int64_t natural(const Pickled* value, std::string_view what) const {
    const std::int64_t out = of_kind(value, Kind::integer, what).integer;
    if (out < 0) refuse(what, concat("is ", out));
    return out;
  }
  /// A torch.Size or a tuple.
  Shape sizes(const Pickled* value, std::string_view what) const {
    if (value != nullptr && value->is_object_of("torch Size")) {
      const Pickled& arguments = *value->items[1];
      value = arguments.items.size() == 1 ? arguments.items[0] : nullptr;
    }
    const Pickled& tuple = of_kind(value, Kind::tuple, what);
    if (tuple.items.size() > kMaxDims) refuse(what, "has too many sizes");
    Shape out;
    for (const Pickled* size : tuple.items) out.push_back(natural(size, what));
    return out;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string read_all(Files& files, const std::string& path) {
  return read_text(files, path, kMostPickleBytes);
}

/// Where something is stored: what _StorageInfo says.
struct Stored {
  std::string file;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

/// Names and offsets of what is stored; of values that are no tensors there are no offsets.
using Places = std::map<std::pair<std::string, std::string>, Stored>;

Places places_of(const Reader& reader, const Pickled& storage) {
  Places out;
  for (std::size_t i = 0; i + 1 < storage.items.size(); i += 2) {
    const Pickled& key =
        reader.object_of(storage.items[i], "torch.distributed.checkpoint.metadata MetadataIndex");
    const Pickled& info = reader.object_of(storage.items[i + 1],
                                           "torch.distributed.checkpoint.filesystem _StorageInfo");
    const std::string& name = reader.of_kind(reader.field(key, "fqn"), Kind::text, "fqn").text;
    const Pickled* offset = reader.field(key, "offset");
    const bool has_offset = offset != nullptr && !offset->is(Kind::none);
    Stored stored;
    stored.file =
        reader.of_kind(reader.field(info, "relative_path"), Kind::text, "relative_path").text;
    if (stored.file.empty() || stored.file.find('/') != stored.file.npos || stored.file == "..") {
      reader.refuse(concat("'", name, "'"), concat("is in '", stored.file, "', which is no file"));
    }
    stored.begin = static_cast<std::uint64_t>(reader.natural(reader.field(info, "offset"), name));
    stored.bytes = static_cast<std::uint64_t>(reader.natural(reader.field(info, "length"), name));
    const Pickled* transforms = reader.field(info, "transform_descriptors");
    if (transforms != nullptr && !transforms->is(Kind::none) && !transforms->items.empty()) {
      reader.refuse(concat("'", name, "'"),
                    "is compressed or otherwise changed, which is not read");
    }
    const std::string at = has_offset ? concat('@', join(reader.sizes(offset, name))) : "";
    if (!out.emplace(std::pair(name, at), std::move(stored)).second) {
      reader.refuse(concat("'", name, "'"), "is stored twice");
    }
  }
  return out;
}

Part part_at(const Shape& offsets, const Shape& sizes) {
  Part out;
  out.shape = sizes;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    out.runs.emplace_back();
    if (sizes[d] > 0) out.runs.back().push_back({offsets[d], offsets[d] + sizes[d]});
  }
  return out;
}

/// Every element is in one chunk.
void check_chunks(const Reader& reader, const DcpTensor& tensor) {
  std::int64_t found = 0;
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
    found += tensor.chunks[i].part.numel();
    for (std::size_t j = 0; j < i; ++j) {
      if (overlap(tensor.chunks[i].part, tensor.chunks[j].part)) {
        reader.refuse(concat("'", tensor.name, "'"), "has elements in two chunks");
      }
    }
  }
  std::int64_t numel = 1;
  for (const std::int64_t size : tensor.shape) numel *= size;
  if (found != numel) {
    reader.refuse(concat("'", tensor.name, "'"),
                  concat("has ", found, " of ", numel, " elements stored"));
  }
}

DcpTensor tensor_of(const Reader& reader, const std::string& name, const Pickled& described,
                    const Places& places) {
  DcpTensor out{.name = name, .shape = reader.sizes(reader.field(described, "size"), name)};
  try {
    check_shape(kWhere, out.shape);
  } catch (const ValueError& error) {
    reader.refuse(concat("'", name, "'"), error.what());
  }
  const Pickled& properties =
      reader.object_of(reader.field(described, "properties"),
                       "torch.distributed.checkpoint.metadata TensorProperties");
  const Pickled& state = reader.of_kind(properties.state(), Kind::tuple, name);
  const Pickled* dtype = state.items.empty() ? nullptr : state.items[0];
  const TypeName* type = type_named(reader.of_kind(dtype, Kind::global, name).text);
  if (type == nullptr) reader.refuse(concat("'", name, "'"), "has no dtype");
  out.dtype = type->dtype;
  const Pickled& chunks = reader.of_kind(reader.field(described, "chunks"), Kind::list, name);
  for (const Pickled* each : chunks.items) {
    const Pickled& chunk =
        reader.object_of(each, "torch.distributed.checkpoint.metadata ChunkStorageMetadata");
    const Shape offsets = reader.sizes(reader.field(chunk, "offsets"), name);
    const Shape sizes = reader.sizes(reader.field(chunk, "sizes"), name);
    bool fits = offsets.size() == out.shape.size() && sizes.size() == out.shape.size();
    for (std::size_t d = 0; fits && d < sizes.size(); ++d) {
      fits = sizes[d] <= out.shape[d] && offsets[d] <= out.shape[d] - sizes[d];
    }
    if (!fits) reader.refuse(concat("'", name, "'"), "has a chunk beyond its sizes");
    const Part part = part_at(offsets, sizes);
    if (part.numel() == 0) continue;
    const auto place = places.find({name, concat('@', join(offsets))});
    if (place == places.end()) {
      reader.refuse(concat("'", name, "'"), concat("has no data at [", join(offsets), "]"));
    }
    out.chunks.push_back({part, place->second.file, place->second.begin, place->second.bytes});
  }
  check_chunks(reader, out);
  return out;
}

const ZipMember* member_ending(const std::vector<ZipMember>& members, std::string_view ending) {
  const auto found = std::find_if(members.begin(), members.end(), [&](const ZipMember& each) {
    return each.name.ends_with(ending);
  });
  return found == members.end() ? nullptr : &*found;
}

/// An archive of torch.save.
struct Saved {
  std::vector<ZipMember> members;
  Pickle pickle;
};

Saved open_saved(const Reader& reader, const InputFile& file, std::uint64_t begin,
                 std::uint64_t bytes, bool (*allowed)(std::string_view)) {
  Saved out{read_zip(reader.path(), file, begin, bytes), {}};
  const ZipMember* data = member_ending(out.members, "/data.pkl");
  if (data == nullptr) reader.refuse("an archive", "has no data.pkl");
  if (const ZipMember* order = member_ending(out.members, "/byteorder")) {
    std::string text(order->bytes, '\0');
    file.read(order->begin, std::as_writable_bytes(std::span(text)));
    if (text != "little") reader.refuse("an archive", "has another order of bytes");
  }
  std::vector<std::byte> pickle(data->bytes);
  file.read(data->begin, pickle);
  out.pickle = parse_pickle(reader.path(), pickle, allowed);
  return out;
}

/// A value that is no tensor, as JSON.
Json json_of(const Reader& reader, const std::string& name, const Pickled& value, int depth = 0) {
  constexpr int kMostDepth = 50;
  if (depth > kMostDepth) reader.refuse(concat("'", name, "'"), "is nested too deeply");
  const auto inner = [&](const Pickled* each) { return json_of(reader, name, *each, depth + 1); };
  switch (value.kind) {
    case Kind::none:
      return nullptr;
    case Kind::boolean:
      return value.integer != 0;
    case Kind::integer:
      return value.integer;
    case Kind::number:
      if (std::isfinite(value.number)) return value.number;
      return {{"__float__", std::isnan(value.number) ? "nan" : value.number > 0 ? "inf" : "-inf"}};
    case Kind::text:
      return value.text;
    case Kind::list:
    case Kind::tuple: {
      Json out = Json::array();
      for (const Pickled* each : value.items) out.push_back(inner(each));
      return value.is(Kind::list) ? out : Json{{"__tuple__", out}};
    }
    case Kind::dict: {
      Json named = Json::object();
      Json items = Json::array();
      bool all_texts = true;
      for (std::size_t i = 0; i + 1 < value.items.size(); i += 2) {
        const Pickled& key = *value.items[i];
        Json content = inner(value.items[i + 1]);
        all_texts = all_texts && key.is(Kind::text) && !key.text.starts_with("__");
        if (all_texts) named[key.text] = content;
        items.push_back({inner(&key), std::move(content)});
      }
      return all_texts ? named : Json{{"__items__", items}};
    }
    default:
      reader.refuse(concat("'", name, "'"), "is no number, text, list or dict");
  }
}

/// What torch.save wrote of a tensor: its type, sizes and memory.
struct Rebuilt {
  const TypeName* type = nullptr;
  std::string key;
  std::uint64_t offset = 0;  // in elements
  Shape sizes;
  Shape strides;
};

Rebuilt rebuilt_from(const Reader& reader, const std::string& name, const Pickled* value) {
  if (value->is_object_of("torch._utils _rebuild_parameter")) {
    const Pickled& arguments = *value->items[1];
    value = arguments.items.empty() ? value : arguments.items[0];
  }
  const bool is_third = value->is_object_of("torch._utils _rebuild_tensor_v3");
  if (!is_third && !value->is_object_of("torch._utils _rebuild_tensor_v2")) {
    reader.refuse(concat("'", name, "'"), "is no dense tensor");
  }
  const auto& arguments = value->items[1]->items;
  constexpr std::size_t kTypeArgument = 6;
  if (arguments.size() < 4 || (is_third && arguments.size() <= kTypeArgument)) {
    reader.refuse(concat("'", name, "'"), "is made in a way that is not known");
  }
  const Pickled& storage = reader.of_kind(arguments[0], Kind::persistent, name);
  const Pickled& reference = reader.of_kind(storage.items[0], Kind::tuple, name);
  if (reference.items.size() < 3) reader.refuse(concat("'", name, "'"), "has no memory");
  Rebuilt out;
  const Pickled* type = is_third ? arguments[kTypeArgument] : reference.items[1];
  out.type = type_named(reader.of_kind(type, Kind::global, name).text);
  out.key = reader.of_kind(reference.items[2], Kind::text, name).text;
  out.offset = static_cast<std::uint64_t>(reader.natural(arguments[1], name));
  out.sizes = reader.sizes(arguments[2], name);
  out.strides = reader.sizes(arguments[3], name);
  return out;
}

bool is_dense(const Rebuilt& tensor) {
  std::int64_t stride = 1;
  for (std::size_t d = tensor.sizes.size(); d-- > 0;) {
    if (tensor.sizes[d] != 1 && tensor.strides[d] != stride) return false;
    stride *= tensor.sizes[d];
  }
  return true;
}

/// The bytes of a chunk.
std::vector<std::byte> chunk_bytes(Files& files, const std::string& folder, const DcpTensor& tensor,
                                   const DcpChunk& chunk) {
  const Reader reader(join_path(folder, chunk.file));
  const auto file = files.open(reader.path());
  const Saved saved = open_saved(reader, *file, chunk.begin, chunk.bytes, allowed_in_tensor);
  const Rebuilt rebuilt = rebuilt_from(reader, tensor.name, saved.pickle.value);
  if (rebuilt.type == nullptr || rebuilt.type->dtype != tensor.dtype ||
      rebuilt.sizes != chunk.part.shape || rebuilt.strides.size() != rebuilt.sizes.size() ||
      !is_dense(rebuilt)) {
    reader.refuse(concat("'", tensor.name, "'"), "is not what the metadata says");
  }
  const ZipMember* data = member_ending(saved.members, concat("/data/", rebuilt.key));
  const std::uint64_t bytes = bytes_of(tensor.dtype, chunk.part.shape);
  const auto width = static_cast<std::uint64_t>(element_bytes(tensor.dtype));
  if (data == nullptr || rebuilt.offset > data->bytes / width ||
      bytes > data->bytes - rebuilt.offset * width) {
    reader.refuse(concat("'", tensor.name, "'"), "has fewer bytes than it needs");
  }
  std::vector<std::byte> out(bytes);
  file->read(data->begin + rebuilt.offset * width, out);
  return out;
}

}  // namespace

DcpFolder read_dcp_folder(Files& files, const std::string& folder, bool with_values) {
  const Reader reader(join_path(folder, kMetadataName));
  const std::string text = read_all(files, reader.path());
  const Pickle pickle =
      parse_pickle(reader.path(), std::as_bytes(std::span(text)), allowed_in_metadata);
  const Pickled& metadata =
      reader.object_of(pickle.value, "torch.distributed.checkpoint.metadata Metadata");
  const Pickled& described = reader.of_kind(reader.field(metadata, "state_dict_metadata"),
                                            Kind::dict, "state_dict_metadata");
  const Places places = places_of(
      reader, reader.of_kind(reader.field(metadata, "storage_data"), Kind::dict, "storage_data"));
  DcpFolder out;
  for (std::size_t i = 0; i + 1 < described.items.size(); i += 2) {
    const std::string& name = reader.of_kind(described.items[i], Kind::text, "a name").text;
    const Pickled& entry = *described.items[i + 1];
    if (entry.is_object_of("torch.distributed.checkpoint.metadata TensorStorageMetadata")) {
      out.tensors.push_back(tensor_of(reader, name, entry, places));
      continue;
    }
    reader.object_of(&entry, "torch.distributed.checkpoint.metadata BytesStorageMetadata");
    if (!with_values) continue;
    const auto place = places.find({name, ""});
    if (place == places.end()) reader.refuse(concat("'", name, "'"), "is not stored");
    const Reader inside(join_path(folder, place->second.file));
    const auto file = files.open(inside.path());
    const Saved saved =
        open_saved(inside, *file, place->second.begin, place->second.bytes, allowed_in_value);
    out.values[name] = json_of(inside, name, *saved.pickle.value);
  }
  return out;
}

void read_dcp_tensor(Files& files, const std::string& folder, const DcpTensor& tensor,
                     std::span<std::byte> into) {
  const Part all = part_of(boxes(Layout::replicated(Mesh()), tensor.shape, {}));
  for (const DcpChunk& chunk : tensor.chunks) {
    const auto bytes = chunk_bytes(files, folder, tensor, chunk);
    CopyRuns runs(chunk.part, all, element_bytes(tensor.dtype));
    while (const auto run = runs.run()) {
      std::memcpy(into.data() + run->to, bytes.data() + run->from, run->bytes);
      runs.advance(run->bytes);
    }
  }
}

}  // namespace intarsia::checkpoint
