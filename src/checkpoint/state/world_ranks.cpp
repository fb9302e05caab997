#include "checkpoint/state/world_ranks.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "intarsia/collectives.h"

namespace intarsia::checkpoint {
namespace {

at::Tensor bytes_tensor(const std::string& text, at::Device device) {
  const at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes.to(device);
}

std::string text_of(const at::Tensor& bytes) {
  const at::Tensor here = bytes.cpu().contiguous();
  return {static_cast<const char*>(here.const_data_ptr()), here.nbytes()};
}

/// The length of a text and its beginning, which is nearly always all of it.
constexpr std::size_t kBlockBytes = 1024;
constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kBeginning = kBlockBytes - kLengthBytes;

std::string block_of(const std::string& text) {
  std::string out(kBlockBytes, '\0');
  const std::uint64_t length = text.size();
  std::memcpy(out.data(), &length, kLengthBytes);
  std::memcpy(out.data() + kLengthBytes, text.data(), std::min(text.size(), kBeginning));
  return out;
}

/// What each member of a group says: one collective, or two if a text is long.
std::vector<std::string> gather_texts(const Comm& comm, const std::string& text,
                                      at::Device device) {
  const std::string blocks =
      text_of(all_gather(comm, bytes_tensor(block_of(text), device), 0).tensor());
  std::vector<std::string> out;
  std::vector<std::int64_t> rests;
  bool is_all = true;
  for (std::size_t at = 0; at < blocks.size(); at += kBlockBytes) {
    std::uint64_t length = 0;
    std::memcpy(&length, blocks.data() + at, kLengthBytes);
    out.push_back(blocks.substr(at + kLengthBytes, std::min(length, kBeginning)));
    rests.push_back(static_cast<std::int64_t>(length - out.back().size()));
    is_all = is_all && rests.back() == 0;
  }
  if (is_all) return out;
  const std::string rest = text.substr(std::min(text.size(), kBeginning));
  const std::string all = text_of(all_gather(comm, bytes_tensor(rest, device), 0, rests).tensor());
  std::size_t at = 0;
  for (std::size_t rank = 0; rank < out.size(); ++rank) {
    out[rank] += all.substr(at, static_cast<std::size_t>(rests[rank]));
    at += static_cast<std::size_t>(rests[rank]);
  }
  return out;
}

}  // namespace

Mesh mesh_of_all(const World& world) { return Mesh({Axis{"world", world.size()}}); }

std::string WorldRanks::host() const {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string WorldRanks::agree(std::string said, const Verdict& verdict) {
  if (size() == 1) return verdict(std::span(&said, 1));
  const auto all = gather_texts(comm_, said, world_.device());
  // What all have is all that rank 0 needs; what it decides is the text that only it has.
  return gather_texts(comm_, rank() == 0 ? verdict(all) : std::string(), world_.device())[0];
}

}  // namespace intarsia::checkpoint
