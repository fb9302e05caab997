// Attention of one rank's queries, as keys come to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "context/mask/work.h"
#include "intarsia/attention.h"

namespace intarsia::context {

/// What is the same on all ranks.
struct Setting {
  AttentionMask mask;
  AttentionKernel kernel;
  double scale = 1;
  double dropout = 0;
  std::uint64_t dropout_key = 0;
  at::Tensor slopes;
  std::int64_t batch = 0, heads = 0, key_heads = 0, queries = 0, keys = 0;
};

/// What a rank holds of the queries.
struct Held {
  Range batch;
  Range heads;
  Runs queries;
};

/// The key heads that a rank's query heads use, taken from the ones that it has.
class KeyHeads {
 public:
  /// `here`: the key heads that the rank has. REQUIRES: those of its heads are among them.
  KeyHeads(const Setting& setting, Range heads, Range here);

  at::Tensor of(const at::Tensor& keys) const;
  /// The gradient of what the rank has, from that of what it uses. Communicates nothing.
  at::Tensor back(const at::Tensor& grad) const;
  bool has_just_these() const { return index_.empty() && used_ == here_; }

 private:
  Range here_;
  Range used_;
  std::vector<std::int64_t> index_;  // one for each head, where groups do not begin and end here
};

/// Keys and values that are at hand.
struct KeyValue {
  at::Tensor key;
  at::Tensor value;
};

/// Merges what kernels give for tiles: by the logsumexp, in float or double.
class Forward {
 public:
  Forward(const Setting& setting, const Held& held, const at::Tensor& query,
          std::int64_t value_size);

  /// Computes with keys that stand in these runs.
  void add(const KeyValue& keys, const Runs& runs);
  /// What all keys together give, in the dtype of the queries.
  at::Tensor out() const;
  /// 0 for queries that saw none.
  at::Tensor logsumexp() const;

 private:
  void merge(Range batch, const Work& work, const at::Tensor& out, const at::Tensor& logsumexp);

  const Setting& setting_;
  const Held& held_;
  at::Tensor query_;
  at::Tensor out_;
  at::Tensor logsumexp_;
  std::vector<std::vector<bool>> touched_;  // by sample and query
};

/// Adds up the gradients that kernels give for tiles, in float or double.
class Backward {
 public:
  Backward(const Setting& setting, const Held& held, const at::Tensor& query, const at::Tensor& out,
           const at::Tensor& logsumexp, const at::Tensor& grad);

  /// The gradients of keys that stand in these runs.
  KeyValue add(const KeyValue& keys, const Runs& runs);
  at::Tensor query_grad() const { return query_grad_; }

 private:
  const Setting& setting_;
  const Held& held_;
  at::Tensor query_, out_, logsumexp_, grad_;
  at::Tensor query_grad_;
};

/// The dtype that partial results are added up in.
at::ScalarType accumulating(at::ScalarType dtype);

}  // namespace intarsia::context
