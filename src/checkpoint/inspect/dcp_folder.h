// Folders of torch.distributed.checkpoint: what is in them, read without executing anything.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/files/files.h"
#include "checkpoint/format/json.h"
#include "checkpoint/plan/part.h"
#include "intarsia/tensor_type.h"

namespace intarsia::checkpoint {

/// A part of a tensor, and the archive that holds it.
struct DcpChunk {
  Part part;
  std::string file;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
};

struct DcpTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape = {};
  /// Every element is in exactly one of them.
  std::vector<DcpChunk> chunks = {};
};

struct DcpFolder {
  std::vector<DcpTensor> tensors;
  /// What is no tensor, by name.
  Json values = Json::object();
};

/// Reads `.metadata`, which is a pickle, and the values that are no tensors, each a pickle in an
/// archive (not `with_values`: they are left out). FileError that names what is not as PyTorch
/// writes it, and every class in a pickle that is not one of the few that are needed.
DcpFolder read_dcp_folder(Files& files, const std::string& folder, bool with_values);

/// Reads a tensor. REQUIRES: `into` has its bytes.
void read_dcp_tensor(Files& files, const std::string& folder, const DcpTensor& tensor,
                     std::span<std::byte> into);

}  // namespace intarsia::checkpoint
