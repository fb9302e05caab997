#include "world/collectives/arguments.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/placement.h"

namespace intarsia {

void check_pieces(std::string_view where, const Comm& comm, at::TensorList pieces) {
  if (pieces.size() != comm.members().size()) {
    fail<ValueError>(where, "group ", comm.name(), " has ", comm.members().size(),
                     " members in this process, but ", pieces.size(), " tensors were given");
  }
  for (const at::Tensor& t : pieces) {
    if (!t.defined()) fail<ValueError>(where, "an undefined tensor was given");
    if (t.layout() != at::kStrided) {
      fail<UnsupportedError>(where, "the tensor is ", t.is_sparse() ? "sparse" : "not strided",
                             "; make it dense first");
    }
  }
}

std::int64_t checked_dim(std::string_view where, std::int64_t dim, const at::Tensor& t) {
  return normalize_dim(where, dim, static_cast<std::size_t>(t.dim()));
}

std::span<const std::int64_t> of_member(const Comm& comm, const Counts& all, std::size_t member) {
  const auto n = static_cast<std::size_t>(comm.size());
  return std::span(all).subspan(all.size() == n ? 0 : member * n, n);
}

Counts checked_lengths(std::string_view where, const Comm& comm,
                       std::span<const std::int64_t> given, std::int64_t each) {
  Counts out(given.begin(), given.end());
  const auto n = static_cast<std::size_t>(comm.size());
  if (out.empty()) out.assign(n, each);
  if (out.size() != n && out.size() != n * comm.members().size()) {
    fail<ValueError>(where, "group ", comm.name(), " has ", comm.size(), " ranks, but ", out.size(),
                     " lengths were given (", join(out), ")");
  }
  if (*std::min_element(out.begin(), out.end()) < 0) {
    fail<ValueError>(where, "the lengths (", join(out), ") have a negative one");
  }
  return out;
}

std::int64_t equal_part(std::string_view where, const Comm& comm, std::int64_t length,
                        bool lengths_given) {
  if (!lengths_given && length % comm.size() != 0) {
    fail<ValueError>(where, "length ", length, " does not divide into ", comm.size(),
                     " equal parts; give the lengths");
  }
  return length / comm.size();
}

void check_total(std::string_view where, const Comm& comm, const Counts& all, at::TensorList pieces,
                 std::int64_t dim) {
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const auto lengths = of_member(comm, all, m);
    const std::int64_t total = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    if (total == pieces[m].size(dim)) continue;
    fail<ValueError>(where, "the lengths (", join(lengths), ") add up to ", total,
                     ", but the tensor is ", pieces[m].size(dim), " long");
  }
}

void check_own_lengths(std::string_view where, const Comm& comm, at::TensorList pieces,
                       std::int64_t dim, const Counts& all) {
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const Member& member = comm.members()[m];
    const auto lengths = of_member(comm, all, m);
    const std::int64_t length = lengths[static_cast<std::size_t>(member.index)];
    if (pieces[m].size(dim) == length) continue;
    fail<ValueError>(where, "the piece of rank ", member.rank, " is ", pieces[m].size(dim),
                     " long in dimension ", dim, ", but the lengths (", join(lengths), ") say ",
                     length);
  }
}

}  // namespace intarsia
