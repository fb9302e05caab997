#include "parallel/replicate/buckets.h"

#include <algorithm>

namespace intarsia {
namespace {

struct Open {
  std::vector<std::size_t> members = {};
  std::int64_t bytes = 0;
  std::int64_t limit = 0;
  std::size_t last = 0;  // the place of its last member in the order
};

/// Whether the next parcel goes into another bucket. A small one takes a large parcel along: two
/// collectives would cost more, and the parcel is waited for anyway.
bool is_done(const Open& bucket, std::int64_t next) {
  if (bucket.bytes >= bucket.limit) return true;
  return bucket.bytes + next > bucket.limit && bucket.bytes >= bucket.limit / 2;
}

}  // namespace

std::vector<std::vector<std::size_t>> make_buckets(std::span<const Parcel> parcels,
                                                   std::span<const std::size_t> order,
                                                   const BucketLimits& limits) {
  std::vector<Open> all;
  std::vector<std::size_t> open;  // one for each dtype and device
  for (std::size_t place = 0; place < order.size(); ++place) {
    const Parcel& parcel = parcels[order[place]];
    auto at = std::find_if(open.begin(), open.end(), [&](std::size_t b) {
      return parcel.goes_with(parcels[all[b].members[0]]);
    });
    if (at != open.end() && is_done(all[*at], parcel.bytes)) {
      open.erase(at);
      at = open.end();
    }
    if (at == open.end()) {
      all.push_back({.limit = all.empty() ? limits.first : limits.others});
      at = open.insert(open.end(), all.size() - 1);
    }
    Open& bucket = all[*at];
    bucket.members.push_back(order[place]);
    bucket.bytes += parcel.bytes;
    bucket.last = place;
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Open& a, const Open& b) { return a.last < b.last; });
  std::vector<std::vector<std::size_t>> buckets;
  for (Open& bucket : all) buckets.push_back(std::move(bucket.members));
  return buckets;
}

}  // namespace intarsia
