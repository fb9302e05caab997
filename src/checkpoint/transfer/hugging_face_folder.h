// A folder of Hugging Face as a manifest, so that it is read like a checkpoint of ours.
#pragma once

#include <string>

#include "checkpoint/files/files.h"
#include "checkpoint/format/manifest.h"

namespace intarsia::checkpoint {

/// What is in a folder with `model.safetensors.index.json`, or with one safetensors file. Each file
/// counts as that of a rank which alone holds the tensors in it. Their headers are read; there are
/// no hashes. FileError where files and index do not fit each other.
Manifest read_hf_folder(Files& files, const std::string& folder);

}  // namespace intarsia::checkpoint
