// Linear layers whose communication travels while they compute: overlapped tensor parallelism.
//
// With sequence parallelism a block begins by gathering a tensor of which each rank holds a part,
// and ends by adding up partial values, of which each rank keeps a part of the sum. Both are done
// here together with the linear layer beside them, in chunks: while one chunk is multiplied, the
// next one is under way. Backward does the same, the other way round.
//
//     const auto qkv = gathered_linears(x, {{wq->weight}, {wk->weight}, {wv->weight}}, "tp");
//     const auto out = scattered_linear(mixed, {wo->weight}, "tp", /*dim=*/1);
//
// A plan does this for modules by their names: see placed_linears and placed_linear in
// tensor_parallel.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace intarsia {

/// The parameters of a linear layer.
struct LinearParameters {
  at::Tensor weight;
  at::Tensor bias = {};  ///< may be undefined
};

struct OverlapOptions {
  /// In how many chunks the sharded dimension travels. 1: in one go, before or after the layer. 0:
  /// the number that takes least time by the world's topology, of the powers of two that divide a
  /// rank's part; 1 where nothing is gained. Every rank must say the same.
  std::int64_t chunks = 0;
};

/// Linear layers of one input of which each rank holds a part: `linear(placed(x, axis, R), weight,
/// bias)` for each. No more than one chunk of `x` is waited for before the first is multiplied. In
/// chunks where `x` is S(dim) along the axis, `dim` is not the last dimension, no other axis shards
/// it, and its length divides into equal chunks; in one go otherwise. Equal to that up to rounding:
/// matrix products of other sizes may add in another order. COLLECTIVE: as `redistribute`.
std::vector<at::Tensor> gathered_linears(const at::Tensor& x,
                                         const std::vector<LinearParameters>& linears,
                                         std::string_view axis, const OverlapOptions& options = {});

/// A linear layer whose output is partial, and of whose sum each rank keeps a part:
/// `placed(linear(x, weight, bias), axis, S(dim))`. In chunks where no axis shards `dim` of `x`,
/// `dim` is not the last dimension, and its length divides into equal chunks; in one go otherwise.
/// COLLECTIVE: as `redistribute`.
at::Tensor scattered_linear(const at::Tensor& x, const LinearParameters& linear,
                            std::string_view axis, int dim, const OverlapOptions& options = {});

/// The seconds that a chain of `chunks` takes, each of which is sent and computed with, where a
/// chunk is sent while its neighbour is computed: `send + compute + (chunks - 1) * max(send,
/// compute)`. The number of chunks is chosen by this. `send` is the time of a plan. `compute` is
/// the time of a chunk's part of the matrix products and of the copies which chunks need, of
/// reading all weights, and of starting a collective.
double overlapped_seconds(std::int64_t chunks, double send, double compute);

}  // namespace intarsia
