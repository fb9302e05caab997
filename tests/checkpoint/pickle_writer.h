// Pickles, zip archives and folders of torch.distributed.checkpoint, made by hand for tests.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace intarsia::testing {

/// Opcodes, as Python's protocol 4 has them.
class PickleWriter {
 public:
  PickleWriter& op(unsigned char opcode) {
    out_ += static_cast<char>(opcode);
    return *this;
  }
  PickleWriter& text(const std::string& text) {
    op(0x8c).op(static_cast<unsigned char>(text.size()));
    out_ += text;
    return *this;
  }
  PickleWriter& integer(std::uint32_t value) {
    op('J');
    for (int i = 0; i < 4; ++i) op(static_cast<unsigned char>(value >> (8 * i)));
    return *this;
  }
  PickleWriter& global(const std::string& module, const std::string& name) {
    return text(module).text(name).op(0x93);
  }
  /// A new object of a class, without a state.
  PickleWriter& object(const std::string& module, const std::string& name) {
    return global(module, name).op(')').op(0x81);
  }
  PickleWriter& sizes(const std::vector<std::uint32_t>& sizes) {
    global("torch", "Size").op('(');
    for (const std::uint32_t size : sizes) integer(size);
    return op('t').op(0x85).op('R');
  }
  std::string end() { return out_ + '.'; }

 private:
  std::string out_ = std::string("\x80\x04", 2);
};

inline std::string little(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

/// Members that are stored as they are. `method`: what it says of how they are compressed.
inline std::string zip_of(const std::vector<std::pair<std::string, std::string>>& members,
                          int method = 0) {
  std::string out;
  std::string list;
  for (const auto& [name, data] : members) {
    const std::string common =
        little(0, 2) + little(0, 2) + little(static_cast<std::uint64_t>(method), 2) + little(0, 8) +
        little(data.size(), 4) + little(data.size(), 4) + little(name.size(), 2) + little(0, 2);
    list += little(0x02014b50, 4) + little(0, 2) + common + little(0, 2) + little(0, 2) +
            little(0, 2) + little(0, 4) + little(out.size(), 4) + name;
    out += little(0x04034b50, 4) + common + name + data;
  }
  const std::size_t at = out.size();
  return out + list + little(0x06054b50, 4) + little(0, 4) + little(members.size(), 2) +
         little(members.size(), 2) + little(list.size(), 4) + little(at, 4) + little(0, 2);
}

}  // namespace intarsia::testing
