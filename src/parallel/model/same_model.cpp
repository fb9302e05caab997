#include "parallel/model/same_model.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/move/agreement.h"

namespace intarsia {
namespace {

constexpr Call kCall{.tensor = "the model", .op = "replicate"};

/// One line for each tensor.
std::vector<std::string> lines_of(const ReplicatedTensors& tensors) {
  std::vector<std::string> lines;
  for (const NamedTensor& p : tensors.parameters) {
    lines.push_back(concat("parameter '", p.name, "' ", describe(p.tensor),
                           p.tensor.requires_grad() ? "" : ", frozen"));
  }
  for (const NamedTensor& b : tensors.buffers) {
    lines.push_back(concat("buffer '", b.name, "' ", describe(b.tensor)));
  }
  return lines;
}

std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// Everybody's text. Their lengths are known.
std::vector<std::string> exchange_texts(const Comm& comm, const std::string& mine,
                                        const std::vector<std::int64_t>& lengths,
                                        at::Device device) {
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(mine.size())}, at::kByte);
  std::copy(mine.begin(), mine.end(), bytes.data_ptr<std::uint8_t>());
  const at::Tensor all =
      all_gather(comm, bytes.to(device), 0, lengths, kCall).tensor().cpu().contiguous();
  const auto* at = reinterpret_cast<const char*>(all.const_data_ptr<std::uint8_t>());
  std::vector<std::string> texts;
  for (const std::int64_t length : lengths) {
    texts.emplace_back(at, static_cast<std::size_t>(length));
    at += length;
  }
  return texts;
}

[[noreturn]] void refuse(const std::vector<std::string>& texts, const Comm& comm) {
  const auto other = static_cast<std::size_t>(
      std::find_if(texts.begin(), texts.end(),
                   [&](const std::string& text) { return text != texts[0]; }) -
      texts.begin());
  const std::vector<std::string> first = split_lines(texts[0]);
  const std::vector<std::string> theirs = split_lines(texts[other]);
  const auto line = [](const std::vector<std::string>& lines, std::size_t i) {
    return i < lines.size() ? lines[i] : "nothing more";
  };
  std::size_t i = 0;
  while (line(first, i) == line(theirs, i)) ++i;
  fail<WorldError>("replicate", "the ranks of group ", comm.name(),
                   " have different models: the rank at 0 of the group has ", line(first, i),
                   ", the one at ", other, " has ", line(theirs, i),
                   "; make the same modules in the same order on all ranks");
}

}  // namespace

at::Tensor FlatGroup::joined() const {
  const at::AutoDispatchBelowADInplaceOrView below;
  std::vector<at::Tensor> flat;
  for (const at::Tensor& t : tensors) flat.push_back(t.reshape({-1}));
  return at::cat(flat);
}

void FlatGroup::fill_from(const at::Tensor& flat) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  std::int64_t begin = 0;
  for (const at::Tensor& t : tensors) {
    t.copy_(flat.narrow(0, begin, t.numel()).view(t.sizes()));
    begin += t.numel();
  }
}

std::vector<FlatGroup> by_dtype_and_device(const std::vector<at::Tensor>& tensors) {
  std::vector<FlatGroup> groups;
  for (const at::Tensor& t : tensors) {
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const FlatGroup& g) {
      return g.tensors[0].scalar_type() == t.scalar_type() && g.tensors[0].device() == t.device();
    });
    FlatGroup& group = same == groups.end() ? groups.emplace_back() : *same;
    group.tensors.push_back(t);
  }
  return groups;
}

void check_same_model(const Comm& comm, const ReplicatedTensors& tensors, at::Device device) {
  std::string text;
  for (const std::string& line : lines_of(tensors)) text += line + '\n';
  const std::vector<std::int64_t> mine{static_cast<std::int64_t>(text.size()),
                                       static_cast<std::int64_t>(hash_text(text))};
  const std::vector<at::Tensor> rows = exchange(comm, mine, device, kCall);
  if (std::all_of(rows.begin(), rows.end(),
                  [&](const at::Tensor& row) { return at::equal(row, rows[0]); })) {
    return;
  }
  std::vector<std::int64_t> lengths;
  for (const at::Tensor& row : rows) lengths.push_back(row[0].item<std::int64_t>());
  refuse(exchange_texts(comm, text, lengths, device), comm);
}

std::uint64_t take_from_first(const Comm& comm, const std::vector<FlatGroup>& groups) {
  std::uint64_t bytes = 0;
  for (const FlatGroup& group : groups) {
    const at::Tensor flat = group.joined();
    bytes += flat.nbytes();
    const at::Tensor first = broadcast(comm, flat, 0, kCall).tensor();
    if (comm.index() != 0) group.fill_from(first);
  }
  return bytes;
}

}  // namespace intarsia
