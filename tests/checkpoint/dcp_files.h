// A folder of torch.distributed.checkpoint made by hand, which tests may damage.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/files/memory_files.h"
#include "checkpoint/pickle_writer.h"

namespace intarsia::testing {

inline constexpr const char* kDcpMetadata = "torch.distributed.checkpoint.metadata";
using Sizes = std::vector<std::uint32_t>;

/// A tensor of u8 in an archive, as torch.save writes it.
inline std::string saved_tensor(const Sizes& sizes, const std::string& bytes) {
  PickleWriter pickle;
  pickle.global("torch._utils", "_rebuild_tensor_v2").op('(').op('(');
  pickle.text("storage").global("torch", "ByteStorage").text("0").text("cpu");
  pickle.integer(static_cast<std::uint32_t>(bytes.size())).op('t').op('Q').integer(0);
  pickle.op('(');
  for (const std::uint32_t size : sizes) pickle.integer(size);
  pickle.op('t').op('(');
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    std::uint32_t stride = 1;
    for (std::size_t later = d + 1; later < sizes.size(); ++later) stride *= sizes[later];
    pickle.integer(stride);
  }
  pickle.op('t').op(0x89).op('}').op('t').op('R');
  return zip_of({{"archive/data.pkl", pickle.end()},
                 {"archive/byteorder", "little"},
                 {"archive/data/0", bytes}});
}

/// A tensor [2, 3] in two chunks of columns, and a value; `change` may damage what is said of it.
struct DcpFiles {
  MemoryFiles files;
  std::string first = saved_tensor({2, 1}, std::string("ad"));
  std::string second = saved_tensor({2, 2}, std::string("bcef"));
  std::string value =
      zip_of({{"archive/data.pkl", std::string("\x80\x02}X\x01\0\0\0kK\x07s.", 13)}});
  Sizes second_offset{0, 1};
  std::string file = "__0_0.distcp";

  void chunk(PickleWriter& pickle, const Sizes& offsets, const Sizes& sizes) const {
    pickle.object(kDcpMetadata, "ChunkStorageMetadata").op('}').op('(');
    pickle.text("offsets").sizes(offsets).text("sizes").sizes(sizes).op('u').op('b');
  }
  void place(PickleWriter& pickle, const std::string& name, const Sizes* offset, std::size_t at,
             std::size_t bytes) const {
    pickle.object(kDcpMetadata, "MetadataIndex")
        .op('}')
        .op('(')
        .text("fqn")
        .text(name)
        .text("offset");
    offset != nullptr ? pickle.sizes(*offset) : pickle.op('N');
    pickle.op('u').op('b');
    pickle.object("torch.distributed.checkpoint.filesystem", "_StorageInfo").op('}').op('(');
    pickle.text("relative_path").text(file);
    pickle.text("offset").integer(static_cast<std::uint32_t>(at));
    pickle.text("length").integer(static_cast<std::uint32_t>(bytes)).op('u').op('b');
  }
  void write() {
    PickleWriter pickle;
    pickle.object(kDcpMetadata, "Metadata").op('}').op('(');
    pickle.text("state_dict_metadata").op('}').op('(').text("w");
    pickle.object(kDcpMetadata, "TensorStorageMetadata").op('}').op('(').text("properties");
    pickle.object(kDcpMetadata, "TensorProperties")
        .op('(')
        .global("torch", "uint8")
        .op('t')
        .op('b');
    pickle.text("size").sizes({2, 3}).text("chunks").op(']').op('(');
    chunk(pickle, {0, 0}, {2, 1});
    chunk(pickle, second_offset, {2, 2});
    pickle.op('e').op('u').op('b');
    pickle.text("n").object(kDcpMetadata, "BytesStorageMetadata").op('u');
    pickle.text("storage_data").op('}').op('(');
    const Sizes zero{0, 0};
    place(pickle, "w", &zero, 0, first.size());
    place(pickle, "w", &second_offset, first.size(), second.size());
    place(pickle, "n", nullptr, first.size() + second.size(), value.size());
    pickle.op('u').op('u').op('b');
    checkpoint::write_text(files, "/root/.metadata", pickle.end());
    checkpoint::write_text(files, "/root/__0_0.distcp", first + second + value);
  }
};

}  // namespace intarsia::testing
