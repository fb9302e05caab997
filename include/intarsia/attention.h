// Attention over sequences that are sharded: context parallelism.
//
// Queries, keys and values are [batch, heads, sequence, head size]. Batch, heads and sequence may
// each be sharded, over different axes of a mesh. Every rank computes what its queries see, tile by
// tile, and never makes scores of queries x keys; the tiles are merged by their logsumexp. How keys
// get to queries is a schedule; all schedules give the same numbers up to rounding.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "intarsia/attention_mask.h"
#include "intarsia/sequence_order.h"

namespace intarsia {

/// What a kernel computes: attention of some queries to some keys. Keys and values may have fewer
/// heads than queries, which then share them in groups. The last dimension of query, key, value and
/// of what backward is given has stride 1; others may have any.
struct AttentionBlock {
  at::Tensor query;  ///< [batch, heads, queries, size]
  at::Tensor key;    ///< [batch, key heads, keys, size]
  at::Tensor value;  ///< [batch, key heads, keys, value size]
  double scale = 1;  ///< of the products of query and key
  /// The i-th query sees the first i + 1 keys.
  bool causal = false;
  /// Added to the scores, -inf where a key is not seen; undefined, or it expands to [batch, heads,
  /// queries, keys].
  at::Tensor bias = {};
  /// Probabilities are multiplied by it after they were normalised: dropout. Undefined, or [batch,
  /// heads, queries, keys].
  at::Tensor keep = {};
};

/// The attention op of one device, or one's own: the schedules are the same for all.
struct AttentionKernel {
  /// The output, and the logsumexp of the scores of each query, in float or double. What it gives
  /// for a query that sees no key does not matter.
  std::function<std::pair<at::Tensor, at::Tensor>(const AttentionBlock&)> forward;
  /// The gradients of query, key and value, given those of the full output, the output and the
  /// logsumexp: of all keys, not only of those in the block.
  std::function<std::array<at::Tensor, 3>(const AttentionBlock&, const at::Tensor& grad,
                                          const at::Tensor& out, const at::Tensor& logsumexp)>
      backward;
  /// The most queries and keys of a block; 0 for any number.
  std::int64_t most_queries = 0;
  std::int64_t most_keys = 0;
};

/// How keys and values get to the queries.
///
///   gather   each rank fetches the keys of others that its queries see, and no others: for a
///            window that is a halo
///   ring     pieces of keys and values go round, while what is there is computed with: memory for
///            two pieces, whatever the number of ranks
///   heads    on some axes heads are sharded instead of the sequence while it computes
///            (DeepSpeed's Ulysses): "heads" on all, "ring+heads(u)" on the axis u
///   auto     the cheapest by the world's topology: see docs/context.md
struct AttentionSchedule {
  enum class Keys : std::uint8_t { automatic, gather, ring };
  Keys keys = Keys::automatic;
  bool all_heads = false;
  std::vector<std::string> head_axes = {};

  /// `auto`, `gather`, `ring`, `heads`, `ring+heads(u)`, `gather+heads(u)`.
  std::string to_string() const;
  static AttentionSchedule parse(std::string_view text);
  friend bool operator==(const AttentionSchedule&, const AttentionSchedule&) = default;
};

struct AttentionOptions {
  /// Of the products; 1/sqrt(head size), if unset.
  std::optional<double> scale = std::nullopt;
  /// The probability that a weight is dropped. By the global place of the weight, so that it is the
  /// same in every layout.
  double dropout = 0;
  /// One slope for each head of the queries (ALiBi): slope * (key - query) is added to the scores.
  /// A plain tensor, the same on all ranks; no gradient is computed for it.
  at::Tensor slopes = {};
  AttentionSchedule schedule = {};
  /// Values are the first so many numbers of each key, and none are passed: latent attention, in
  /// which queries are multiplied into the latent space and only latents travel. 0: values are
  /// passed.
  std::int64_t value_in_key = 0;
  /// In which order the sequences of queries and keys are stored.
  SequenceOrder order = {};
  /// That of the keys, where they are another sequence.
  std::optional<SequenceOrder> key_order = std::nullopt;
  /// Instead of the device's.
  std::optional<AttentionKernel> kernel = std::nullopt;
};

/// Attention of queries to the keys that a mask lets them see. A query that sees none gives 0.
/// Differentiable, once. The result is laid out as the queries are; if keys are sharded on an axis
/// along the sequence, so are queries.
///
/// ValueError, before anything is sent, for sizes, layouts and schedules that do not go together.
/// COLLECTIVE: all ranks of the mesh, where the sequence of keys is sharded.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionMask& mask = {}, const AttentionOptions& options = {});

/// What a schedule would cost.
struct AttentionCost {
  AttentionSchedule schedule;
  double seconds = 0;  ///< by the world's topology; with backward, if gradients are wanted
  /// That the rank which receives most receives in forward.
  std::int64_t bytes = 0;
};

/// Every schedule that the layouts allow, the cheapest first: that is the one that `auto` takes.
/// Nothing is computed or sent. Empty where no keys have to travel.
std::vector<AttentionCost> attention_costs(const at::Tensor& query, const at::Tensor& key,
                                           const at::Tensor& value, const AttentionMask& mask = {},
                                           const AttentionOptions& options = {});

/// Until the end of the scope, torch's scaled_dot_product_attention of this thread uses the mask,
/// in the place of its `is_causal`, and the options, on distributed tensors. Without a scope it
/// takes part in context parallelism as it stands where the sequence is sharded: the schedule is
/// chosen.
///
/// Where the options have an order that is not contiguous, ops of this thread that would take the
/// stored sequence for a contiguous one are a ValueError: a plain tensor as long as the sequence,
/// of which nothing says in which order it is (the positions that a model makes by itself), and
/// slices, shifts, running sums and convolutions along it.
///
///     const AttentionScope scope(AttentionMask::causal().documents({0, 700, 1500}));
class AttentionScope {
 public:
  explicit AttentionScope(AttentionMask mask, AttentionOptions options = {});
  ~AttentionScope();
  AttentionScope(const AttentionScope&) = delete;
  AttentionScope& operator=(const AttentionScope&) = delete;

 private:
  struct Inside;
  std::unique_ptr<Inside> inside_;
};

/// What is said of attention besides its tensors.
struct DescribedAttention {
  AttentionMask mask;
  AttentionOptions options;
};

/// What a tensor of mask_tensor says; else what the scope of this thread says; else nothing. For
/// adapters to other libraries' attention. ValueError where it is called in backward, by what
/// computes forward again, without either, after there was a scope: the mask would be lost.
std::optional<DescribedAttention> described_attention(const at::Tensor& mask = {});

/// The description of a mask tensor, [.., queries, keys] or [batch, 1, queries, keys]: bool, true
/// where a key is seen, or floating with 0 there and -inf elsewhere. ValueError, with its bytes,
/// for any other, such as a bias.
AttentionMask mask_of(const at::Tensor& mask);

/// A description as a tensor, uint8 [1, 1, 1, bytes]: what scaled_dot_product_attention takes as
/// `attn_mask` of distributed tensors, with the order and the schedule of the options. It goes
/// where masks go: through models that hand them on, and into functions that checkpointing calls
/// again.
at::Tensor mask_tensor(const AttentionMask& mask, const AttentionOptions& options = {});

/// The description of a mask function, as torch's flex_attention has them: of indices of samples,
/// heads, queries and keys, tensors that broadcast together, it says which keys are seen. It is
/// asked for all of them, some queries at a time, which takes its while for long sequences: keep
/// the mask, it holds for all layers and steps. ValueError if it sees other keys for other heads.
using MaskFunction = std::function<at::Tensor(const at::Tensor& sample, const at::Tensor& head,
                                              const at::Tensor& query, const at::Tensor& key)>;
struct MaskSizes {
  std::int64_t samples = 1;
  std::int64_t heads = 1;
  std::int64_t queries = 0;
  std::int64_t keys = 0;
};
AttentionMask mask_of(const MaskFunction& sees, const MaskSizes& sizes);

/// The kernel of a device: the CPU's own op; on CUDA torch's memory-efficient one, where it agrees
/// with the one that is composed of other ops, which is tried once for each dtype and sizes; else
/// that one, which computes block by block.
AttentionKernel attention_kernel(at::Device device, at::ScalarType dtype, std::int64_t head_size,
                                 std::int64_t value_size, bool dropout);

}  // namespace intarsia
