#include "checkpoint/state/world_ranks.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <array>
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

/// What each member of a group says.
std::vector<std::string> gather_texts(const Comm& comm, const std::string& text,
                                      at::Device device) {
  const auto length = static_cast<std::int64_t>(text.size());
  const at::Tensor lengths =
      all_gather(comm, at::full({1}, length, at::TensorOptions(at::kLong).device(device)), 0)
          .tensor()
          .cpu();
  const std::span<const std::int64_t> each(lengths.const_data_ptr<std::int64_t>(),
                                           static_cast<std::size_t>(lengths.numel()));
  const std::string all = text_of(all_gather(comm, bytes_tensor(text, device), 0, each).tensor());
  std::vector<std::string> out;
  std::size_t at = 0;
  for (const std::int64_t bytes : each) {
    out.push_back(all.substr(at, static_cast<std::size_t>(bytes)));
    at += static_cast<std::size_t>(bytes);
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
