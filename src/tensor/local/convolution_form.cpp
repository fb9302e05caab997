#include "tensor/local/convolution_form.h"

#include "tensor/local/sharded_windows.h"

namespace intarsia {
namespace {

using rules::int_list;

/// The numbers of a convolution on a window.
struct ConvolutionArguments {
  ConvolutionArguments(const Question& q, const ShardedWindows& sharded, const Shape& input)
      : stride(int_list(q, "stride", input.size() - 2)),
        padding(sharded.without_padding(int_list(q, "padding", input.size() - 2), 2)),
        dilation(int_list(q, "dilation", input.size() - 2)),
        output_padding(int_list(q, "output_padding", input.size() - 2)),
        transposed(q.flag("transposed")),
        groups(q.integer("groups", 1)),
        channels(input[1]) {}

  /// How many groups a piece with so many channels has.
  std::int64_t groups_of(std::int64_t piece_channels) const {
    return groups == 1 ? 1 : piece_channels / (channels / groups);
  }

  Sizes stride;
  Sizes padding;
  Sizes dilation;
  Sizes output_padding;
  bool transposed;
  std::int64_t groups;
  std::int64_t channels;
};

}  // namespace

void set_convolution(const Frame& f, const Question& q, const std::vector<Shape>& sizes,
                     Decision& d) {
  const ShardedWindows sharded(f, rules::windows(q), d.in[0].with(d.layouts[0]), d.out_layouts[0],
                               sizes[0]);
  // Without channels in, the bias is still added.
  const bool channels_in = is_sharded(d.layouts[0], 1);
  if (sharded.empty() && !channels_in) return;
  d.local.runs_empty = true;
  if (!sharded.empty()) {
    d.local.beforehand = [sharded](std::vector<Pieces>& in) { in[0] = sharded.fetch(in[0]); };
  }
  const auto out_sizes = local_shapes(f, d.out_layouts[0], sizes[0]);
  d.local.call = [sharded, out_sizes, a = ConvolutionArguments(q, sharded, d.in[0]->sizes)](
                     std::size_t m, torch::jit::Stack& stack) {
    const at::Tensor x = sharded.padded(stack[0].toTensor(), m, 0);
    const at::Tensor weight = stack[1].toTensor();
    const auto bias = stack[2].toOptional<at::Tensor>();
    at::Tensor out;
    if (has_elements(out_sizes[m]) && x.numel() > 0 && weight.numel() > 0) {
      out = at::convolution(x, weight, bias, a.stride, a.padding, a.dilation, a.transposed,
                            a.output_padding, a.groups_of(x.size(1)));
    } else {
      out = at::zeros(to_ref(out_sizes[m]), x.options());
      Sizes along(out_sizes[m].size() - 1, 1);
      along[0] = out.size(1);
      if (bias && bias->defined()) out.add_(bias->view(along));
    }
    replace_stack(stack, {out});
  };
}

void set_convolution_backward(const Frame& f, const Question& q, const std::vector<Shape>& sizes,
                              Decision& d) {
  const ShardedWindows sharded(f, rules::windows(q), d.in[1].with(d.layouts[1]), d.layouts[0],
                               d.in[0]->sizes);
  // Without channels in, the gradient of the bias is still the sum of what comes in.
  const bool channels_in = is_sharded(d.layouts[1], 1);
  if (sharded.empty() && !channels_in) return;
  d.local.runs_empty = true;
  const auto mask = q.arg("output_mask")->toBoolList();
  const std::array<bool, 3> wanted{mask.get(0), mask.get(1), mask.get(2)};
  // Of the input itself, only the gradient of the weight depends on values.
  if (!sharded.empty() && wanted[1]) {
    d.local.beforehand = [sharded](std::vector<Pieces>& in) { in[1] = sharded.fetch(in[1]); };
  }
  const auto weights = local_shapes(f, d.layouts[2], sizes[1]);
  d.local.call = [sharded, wanted, weights, a = ConvolutionArguments(q, sharded, d.in[1]->sizes)](
                     std::size_t m, torch::jit::Stack& stack) {
    const at::Tensor grad = stack[0].toTensor();
    const at::Tensor input = stack[1].toTensor();
    const at::Tensor x = wanted[1] ? sharded.padded(input, m, 0) : sharded.blank(input, m);
    const at::Tensor weight = stack[2].toTensor();
    at::Tensor of_input;
    at::Tensor of_weight;
    at::Tensor of_bias;
    if (grad.numel() > 0 && x.numel() > 0 && weight.numel() > 0) {
      const Sizes bias_sizes{grad.size(1)};
      std::tie(of_input, of_weight, of_bias) =
          at::convolution_backward(grad, x, weight, bias_sizes, a.stride, a.padding, a.dilation,
                                   a.transposed, a.output_padding, a.groups_of(x.size(1)), wanted);
      if (wanted[0]) of_input = sharded.stripped(of_input, m);
    } else {
      if (wanted[0]) of_input = at::zeros(sharded.sizes(input.sizes(), m, false), input.options());
      if (wanted[1]) of_weight = at::zeros(to_ref(weights[m]), weight.options());
      if (wanted[2]) of_bias = grad.transpose(0, 1).flatten(1).sum(1);
    }
    replace_stack(stack, {of_input, of_weight, of_bias});
  };
  if (!sharded.empty() && wanted[0]) {
    d.local.afterwards = [sharded](std::vector<std::vector<at::Tensor>>& results) {
      const Pieces home = sharded.give_back(Pieces(results[0].begin(), results[0].end()));
      results[0].assign(home.begin(), home.end());
    };
  }
}

}  // namespace intarsia
