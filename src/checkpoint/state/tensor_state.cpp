#include "checkpoint/state/tensor_state.h"

#include <ATen/ATen.h>

#include <filesystem>
#include <system_error>

#include "base/text.h"
#include "checkpoint/store/all_files.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/core/impl.h"
#include "world/transport/devices.h"
#include "world/transport/dtype.h"

namespace intarsia::checkpoint {

bool is_plain_floating(at::ScalarType dtype) {
  return at::isFloatingType(dtype) && c10::elementSize(dtype) > 1;
}

TensorType type_of(std::string_view where, const World& world, const std::string& name,
                   const at::Tensor& tensor) {
  if (!tensor.defined()) fail<ValueError>(where, "'", name, "' is an undefined tensor");
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype || tensor.layout() != at::kStrided || tensor.is_meta()) {
    fail<UnsupportedError>(where, "'", name, "' is ", describe(tensor),
                           ", of a kind that no checkpoint holds");
  }
  TensorType type{*dtype, {}, {}};
  if (tensor.dim() > static_cast<std::int64_t>(kMaxDims)) {
    fail<UnsupportedError>(where, "'", name, "' has more than ", kMaxDims, " dimensions");
  }
  for (const std::int64_t size : tensor.sizes()) type.shape.push_back(size);
  if (has_layout(tensor)) {
    if (&world_of(tensor) != &world) {
      fail<ValueError>(where, "'", name, "' is a tensor of another world");
    }
    type.layout = layout_of(tensor);
  } else {
    type.layout = Layout::replicated(mesh_of_all(world));
  }
  return type;
}

std::vector<SavedTensor> types_of(std::string_view where, const World& world,
                                  const NamedTensors& tensors) {
  std::vector<SavedTensor> out;
  for (const auto& [name, tensor] : tensors) {
    out.push_back({name, type_of(where, world, name, tensor)});
  }
  return out;
}

void check_world(std::string_view where, const World& world) {
  if (world.simulated()) {
    fail<UnsupportedError>(where, "tensors of a simulated world have no values to save or load");
  }
}

at::Tensor piece_of(const World& world, const at::Tensor& tensor, std::int64_t rank) {
  if (!has_layout(tensor)) return tensor.detach();
  const DistributedImpl& impl = impl_of(tensor);
  const Mesh& mesh = impl.spec()->layout.mesh();
  if (!mesh.contains(rank)) return {};
  std::size_t place = 0;
  for (const std::int64_t other : world.hosted()) {
    if (other == rank) break;
    place += mesh.contains(other) ? 1 : 0;
  }
  return impl.pieces().at(place);
}

std::span<std::byte> memory_of(const at::Tensor& dense) {
  return {static_cast<std::byte*>(dense.data_ptr()), dense.nbytes()};
}

RankState state_of(const World& world, const NamedTensors& tensors, std::int64_t rank) {
  RankState out;
  Copies copies;
  for (const auto& [name, tensor] : tensors) {
    at::Tensor piece = piece_of(world, tensor, rank);
    if (piece.defined()) piece = piece.resolve_conj().resolve_neg().contiguous();
    if (piece.defined() && !piece.is_cpu()) {
      const at::Tensor here = host_memory(piece.sizes(), piece.scalar_type(), piece.device());
      copies.begin(here, piece);
      piece = here;
    }
    out.dense.push_back(piece);
    out.pieces.emplace_back(piece.defined() ? memory_of(piece) : std::span<std::byte>());
  }
  copies.finish();
  return out;
}

NamedTensors converted(std::string_view where, const NamedTensors& tensors, CheckpointForm form,
                       std::optional<at::ScalarType> dtype) {
  if (!dtype) return tensors;
  if (form != CheckpointForm::hf) {
    fail<ValueError>(where,
                     "hf_dtype is for the hf form; the native one keeps each tensor's dtype");
  }
  if (!is_plain_floating(*dtype)) {
    fail<ValueError>(where, "hf_dtype is ", c10::toString(*dtype),
                     "; give float64, float32, bfloat16 or float16");
  }
  NamedTensors out;
  for (const auto& [name, tensor] : tensors) {
    const bool is_number = tensor.defined() && is_plain_floating(tensor.scalar_type());
    out.emplace_back(name, is_number ? tensor.detach().to(*dtype) : tensor);
  }
  return out;
}

Json values_json(std::string_view where, const CheckpointValues& values) {
  Json out = Json::object();
  for (const auto& [name, text] : values) {
    try {
      out[name] = Json::parse(text);
    } catch (const Json::exception&) {
      fail<ValueError>(where, "the value '", name, "' is no JSON: ", text);
    }
  }
  return out;
}

std::optional<std::uint64_t> hf_file_bytes(std::string_view where, CheckpointForm form,
                                           std::uint64_t file_bytes) {
  if (form == CheckpointForm::native) return std::nullopt;
  if (file_bytes == 0) fail<ValueError>(where, "files of at most 0 bytes hold nothing");
  return file_bytes;
}

void try_make_folders(const std::string& folder) {
  if (is_in_store(folder)) return;
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
}

}  // namespace intarsia::checkpoint
