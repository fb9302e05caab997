// Attention over sharded sequences.
#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <string>

#include "bind.h"
#include "intarsia/attention.h"
#include "intarsia/error.h"
#include "intarsia/scan.h"
#include "intarsia/sequence.h"

using namespace pybind11::literals;

namespace intarsia {
namespace {

using Lengths = std::vector<std::int64_t>;
using PythonKernel = std::tuple<decltype(AttentionKernel::forward),
                                decltype(AttentionKernel::backward), std::int64_t, std::int64_t>;

/// What every value of ours has: a text form, equality, copies, pickles.
template <class T>
void define_value(py::class_<T>& type, const std::string& name) {
  copy_as_value(type);
  type.def("to_string", &T::to_string)
      .def("__str__", &T::to_string)
      .def("__repr__", [name](const T& v) { return "<" + name + " " + v.to_string() + ">"; })
      .def(
          "__eq__", [](const T& a, const T& b) { return a == b; }, py::is_operator())
      .def_static("parse", &T::parse, "text"_a)
      .def(py::pickle([](const T& v) { return v.to_string(); },
                      [](const std::string& text) { return T::parse(text); }));
}

AttentionOptions options_of(std::optional<double> scale, double dropout,
                            const std::optional<at::Tensor>& slopes, const std::string& schedule,
                            const SequenceOrder& order,
                            const std::optional<SequenceOrder>& key_order,
                            const std::optional<PythonKernel>& kernel, std::int64_t value_in_key) {
  AttentionOptions out{.scale = scale,
                       .dropout = dropout,
                       .slopes = slopes.value_or(at::Tensor()),
                       .schedule = AttentionSchedule::parse(schedule),
                       .value_in_key = value_in_key,
                       .order = order,
                       .key_order = key_order};
  if (kernel) {
    const auto& [forward, backward, most_queries, most_keys] = *kernel;
    out.kernel = AttentionKernel{forward, backward, most_queries, most_keys};
  }
  return out;
}

/// AttentionScope with Python's beginning and end.
class PythonAttentionScope {
 public:
  PythonAttentionScope(AttentionMask mask, AttentionOptions options)
      : mask_(std::move(mask)), options_(std::move(options)) {}
  void enter() {
    if (scope_) {
      throw ValueError("[attention_scope] the scope of " + mask_.short_text() +
                       " is entered already; make another one");
    }
    scope_ = std::make_unique<AttentionScope>(mask_, options_);
  }
  void exit() { scope_.reset(); }

 private:
  AttentionMask mask_;
  AttentionOptions options_;
  std::unique_ptr<AttentionScope> scope_;
};

void bind_mask(py::module_& m) {
  py::class_<AttentionMask> mask(m, "AttentionMask", "Which keys a query sees, as a description.");
  define_value(mask, "AttentionMask");
  mask.def_static("all", &AttentionMask::all)
      .def_static("causal", &AttentionMask::causal)
      .def_static("window", &AttentionMask::window, "before"_a, "after"_a = 0)
      .def_static("of", py::overload_cast<const at::Tensor&>(&mask_of), "mask"_a,
                  "The description of a mask tensor.", WithoutGil())
      .def_static(
          "of_function",
          [](const MaskFunction& sees, std::int64_t queries, std::int64_t keys,
             std::int64_t samples, std::int64_t heads) {
            return mask_of(sees, {samples, heads, queries, keys});
          },
          "sees"_a, "queries"_a, "keys"_a, "samples"_a = 1, "heads"_a = 1,
          "The description of a mask function, as torch's flex_attention has them.", WithoutGil())
      .def("prefix", &AttentionMask::prefix, "keys"_a)
      .def("sinks", &AttentionMask::sinks, "keys"_a)
      .def("within", &AttentionMask::within, "before"_a, "after"_a)
      .def("documents", &AttentionMask::documents, "starts"_a)
      .def("documents_of_samples", &AttentionMask::documents_of_samples, "starts"_a)
      .def("offset", &AttentionMask::offset, "offset"_a)
      .def("sees", &AttentionMask::sees, "sample"_a, "query"_a, "key"_a)
      .def("samples", &AttentionMask::samples)
      .def("document_starts", &AttentionMask::document_starts);
}

void bind_order(py::module_& m) {
  py::class_<SequenceOrder> order(m, "SequenceOrder",
                                  "In which order positions of a sequence stand in a tensor.");
  define_value(order, "SequenceOrder");
  order.def(py::init<>())
      .def_static(
          "head_tail",
          [](const Lengths& lengths, const std::optional<Lengths>& documents) {
            return documents ? SequenceOrder::head_tail(lengths, *documents)
                             : SequenceOrder::head_tail(lengths);
          },
          "lengths"_a, "documents"_a = py::none())
      .def_static(
          "balanced",
          [](const Lengths& lengths, const AttentionMask& mask, std::int64_t block) {
            return SequenceOrder::balanced(lengths, mask, block);
          },
          "lengths"_a, "mask"_a, "block"_a = 0)
      .def("is_contiguous", &SequenceOrder::is_contiguous)
      .def("positions", &SequenceOrder::positions, "size"_a)
      .def("places", &SequenceOrder::places, "size"_a);
  m.def("shard_lengths", &shard_lengths, "size"_a, "ranks"_a);
  m.def(
      "attention_work",
      [](const AttentionMask& mask, const SequenceOrder& order, const Lengths& lengths) {
        return attention_work(mask, order, lengths);
      },
      "mask"_a, "order"_a, "lengths"_a);
}

void bind_sequence(py::module_& m) {
  py::class_<Packing>(m, "Packing", "One packed sequence: samples as documents, spread over ranks.")
      .def_readonly("samples", &Packing::samples)
      .def_readonly("documents", &Packing::documents)
      .def_readonly("size", &Packing::size)
      .def_readonly("padding", &Packing::padding)
      .def_readonly("order", &Packing::order)
      .def("mask", &Packing::mask);
  m.def(
      "pack",
      [](const Lengths& lengths, std::int64_t ranks, std::int64_t tokens) {
        return pack(lengths, {.ranks = ranks, .tokens = tokens});
      },
      "lengths"_a, "ranks"_a, "tokens"_a,
      "Spreads samples of these lengths over sequences of at most `tokens` tokens for each rank.");
  m.def("in_order", &in_order, "tensor"_a, "order"_a, "dim"_a, WithoutGil(),
        "The tensor with the positions along `dim` as they are stored in an order.");
  m.def("in_positions", &in_positions, "tensor"_a, "order"_a, "dim"_a, WithoutGil(),
        "The reverse of in_order.");
  m.def(
      "next_tokens",
      [](const at::Tensor& tokens, const Lengths& documents, std::int64_t ignore_index) {
        return next_tokens(tokens, documents, ignore_index);
      },
      "tokens"_a, "documents"_a = Lengths(), "ignore_index"_a = -100, WithoutGil(),
      "The labels of a language model: the token after each, and ignore_index at ends.");
  m.def(
      "positions_in_order",
      [](const SequenceOrder& order, std::int64_t size, const Lengths& documents) {
        return positions_in_order(order, size, documents);
      },
      "order"_a, "size"_a, "documents"_a = Lengths(),
      "The position at each place of an order, counted from the begin of its document.");
  m.def(
      "packed",
      [](const Packing& packing, const std::vector<at::Tensor>& samples, double padding) {
        return packed(packing, samples, padding);
      },
      "packing"_a, "samples"_a, "padding"_a = 0, WithoutGil(),
      "[1, size, ...]: the samples of a packing one after the other, and padding.");
  m.def("packed_labels", &packed_labels, "packing"_a, "tokens"_a, "ignore_index"_a = -100,
        WithoutGil(), "next_tokens of what `packed` gave, and ignore_index for the padding.");
}

using Tensors = std::vector<at::Tensor>;
/// Python's functions of a layer. `summary` gives a pair: the state, and what is kept.
using PythonLayer =
    std::tuple<std::function<std::pair<Tensors, Tensors>(const Tensors&, const Tensors&)>,
               decltype(ScanLayer::combine), decltype(ScanLayer::outputs)>;

ScanOptions scan_options(std::int64_t dim, const std::string& schedule,
                         const SequenceOrder& order) {
  return {.dim = dim, .schedule = parse_scan_schedule(schedule), .order = order};
}

void bind_scan(py::module_& m) {
  m.def(
      "scan",
      [](const PythonLayer& given, const Tensors& along, const Tensors& others, std::int64_t dim,
         const std::string& schedule, const SequenceOrder& order) {
        const auto& [summary, combine, outputs] = given;
        const ScanLayer layer{
            .summary = [summary = summary](const Tensors& a,
                                           const Tensors& o) -> ScanLayer::Summary {
              auto [state, kept] = summary(a, o);
              return {std::move(state), std::move(kept)};
            },
            .combine = combine,
            .outputs = outputs};
        return scan(layer, along, others, scan_options(dim, schedule, order));
      },
      "layer"_a, "along"_a, "others"_a, "dim"_a, "schedule"_a, "order"_a, WithoutGil());
  m.def(
      "linear_recurrence",
      [](const at::Tensor& decay, const at::Tensor& input, std::int64_t dim,
         const std::string& schedule, const SequenceOrder& order) {
        return linear_recurrence(decay, input, scan_options(dim, schedule, order));
      },
      "decay"_a, "input"_a, "dim"_a, "schedule"_a, "order"_a, WithoutGil());
}

}  // namespace

void bind_context(py::module_& m) {
  bind_mask(m);
  bind_order(m);
  bind_sequence(m);
  bind_scan(m);
  py::class_<AttentionBlock>(m, "AttentionBlock", "Some queries and some keys: what a kernel gets.")
      .def_readonly("query", &AttentionBlock::query)
      .def_readonly("key", &AttentionBlock::key)
      .def_readonly("value", &AttentionBlock::value)
      .def_readonly("scale", &AttentionBlock::scale)
      .def_readonly("causal", &AttentionBlock::causal)
      .def_property_readonly("bias",
                             [](const AttentionBlock& b) {
                               return b.bias.defined() ? std::optional(b.bias) : std::nullopt;
                             })
      .def_property_readonly("keep", [](const AttentionBlock& b) {
        return b.keep.defined() ? std::optional(b.keep) : std::nullopt;
      });
  m.def(
      "attention",
      [](const at::Tensor& query, const at::Tensor& key, const std::optional<at::Tensor>& value,
         const AttentionMask& mask, std::optional<double> scale, double dropout,
         const std::optional<at::Tensor>& slopes, const std::string& schedule,
         const SequenceOrder& order, const std::optional<SequenceOrder>& key_order,
         const std::optional<PythonKernel>& kernel, std::int64_t value_in_key) {
        return attention(
            query, key, value.value_or(at::Tensor()), mask,
            options_of(scale, dropout, slopes, schedule, order, key_order, kernel, value_in_key));
      },
      "query"_a, "key"_a, "value"_a, "mask"_a, "scale"_a, "dropout"_a, "slopes"_a, "schedule"_a,
      "order"_a, "key_order"_a, "kernel"_a, "value_in_key"_a, WithoutGil());
  m.def(
      "attention_costs",
      [](const at::Tensor& query, const at::Tensor& key, const std::optional<at::Tensor>& value,
         const AttentionMask& mask, const SequenceOrder& order, std::int64_t value_in_key) {
        std::vector<std::tuple<std::string, double, std::int64_t>> out;
        for (const AttentionCost& cost :
             attention_costs(query, key, value.value_or(at::Tensor()), mask,
                             {.value_in_key = value_in_key, .order = order})) {
          out.emplace_back(cost.schedule.to_string(), cost.seconds, cost.bytes);
        }
        return out;
      },
      "query"_a, "key"_a, "value"_a, "mask"_a, "order"_a, "value_in_key"_a, WithoutGil());
  m.def(
      "mask_tensor",
      [](const AttentionMask& mask, const SequenceOrder& order, const std::string& schedule) {
        return mask_tensor(mask, {.schedule = AttentionSchedule::parse(schedule), .order = order});
      },
      "mask"_a, "order"_a, "schedule"_a);
  m.def(
      "described_attention",
      [](const std::optional<at::Tensor>& mask)
          -> std::optional<std::tuple<AttentionMask, SequenceOrder, std::string>> {
        const auto found = described_attention(mask.value_or(at::Tensor()));
        if (!found) return std::nullopt;
        return {{found->mask, found->options.order, found->options.schedule.to_string()}};
      },
      "mask"_a, WithoutGil());
  py::class_<PythonAttentionScope>(m, "AttentionScope")
      .def(py::init([](const AttentionMask& mask, std::optional<double> scale, double dropout,
                       const std::optional<at::Tensor>& slopes, const std::string& schedule,
                       const SequenceOrder& order, const std::optional<SequenceOrder>& key_order,
                       const std::optional<PythonKernel>& kernel) {
             return std::make_unique<PythonAttentionScope>(
                 mask, options_of(scale, dropout, slopes, schedule, order, key_order, kernel, 0));
           }),
           "mask"_a, "scale"_a, "dropout"_a, "slopes"_a, "schedule"_a, "order"_a, "key_order"_a,
           "kernel"_a)
      .def("__enter__", &PythonAttentionScope::enter)
      .def("__exit__", [](PythonAttentionScope& scope, const py::args&) { scope.exit(); });
}

}  // namespace intarsia
