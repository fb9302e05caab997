// Formulas of moments, norms, positions of extremes, and normalisation.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <numeric>

#include "rules/formulas.h"

namespace intarsia::rules {
namespace {

using Dims = std::vector<std::int64_t>;

/// The sums of partial values, on every rank: adding a number is not linear, so they are reduced
/// first.
at::Tensor reduced(const at::Tensor& partials) { return partials + 0; }

bool is_given(const OptionalTensor& t) { return t && t->defined(); }

/// The dimensions that a reduction names, counted from the front; none named mean all.
Dims dims_of(const at::Tensor& t, at::OptionalIntArrayRef named) {
  Dims dims(static_cast<std::size_t>(t.dim()));
  std::iota(dims.begin(), dims.end(), 0);
  if (!named || named->empty()) return dims;
  dims.clear();
  for (const std::int64_t d : *named) dims.push_back(d < 0 ? d + t.dim() : d);
  return dims;
}

Dims all_but(const at::Tensor& t, std::int64_t kept) {
  Dims dims = dims_of(t, std::nullopt);
  dims.erase(dims.begin() + (kept < 0 ? kept + t.dim() : kept));
  return dims;
}

std::int64_t count_over(const at::Tensor& t, const Dims& dims) {
  std::int64_t n = 1;
  for (const std::int64_t d : dims) n *= t.size(d);
  return n;
}

/// As sum(dims), which for no dims would sum over all.
at::Tensor sum_over(const at::Tensor& t, const Dims& dims) {
  return dims.empty() ? t : t.sum(dims);
}

/// The arguments of a call by name, for ops whose overloads have different ones.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
      : schema_(op.schema()), stack_(stack) {}

  /// Null where there is no such argument, or it was not passed.
  const c10::IValue* find(std::string_view name) const {
    const auto at = argument_index(schema_, name);
    return at && !stack_[*at].isNone() ? &stack_[*at] : nullptr;
  }
  at::Tensor tensor(std::string_view name) const {
    const c10::IValue* value = find(name);
    return value != nullptr ? value->toTensor() : at::Tensor();
  }
  bool flag(std::string_view name) const {
    const c10::IValue* value = find(name);
    return value != nullptr && value->toBool();
  }

 private:
  const c10::FunctionSchema& schema_;
  const torch::jit::Stack& stack_;
};

}  // namespace

// ---- moments ---------------------------------------------------------------------------------

TwoTensors var_mean_formula(const at::Tensor& self, at::OptionalIntArrayRef dim,
                            const std::optional<at::Scalar>& correction, bool keepdim) {
  const at::Tensor x = widened(self);
  const Dims dims = dims_of(x, dim);
  const double divisor = std::max(
      0.0, static_cast<double>(count_over(x, dims)) - (correction ? correction->toDouble() : 1.0));
  const at::Tensor mean = x.mean(dims, true);
  const at::Tensor deviation = x - mean;
  const at::Tensor squares =
      (deviation.is_complex() ? deviation.abs() : deviation).square().sum(dims, keepdim);
  // A sum divided by 0 is infinite, but a partial value may be 0, and 0 / 0 is NaN. abs is not
  // linear, so it has the sum reduced first.
  const at::Tensor var = (divisor > 0 ? squares : squares.abs()) / divisor;
  return {var.to(at::toRealValueType(self.scalar_type())),
          (keepdim ? mean : mean.squeeze(dims)).to(self.scalar_type())};
}

at::Tensor var_formula(const at::Tensor& self, at::OptionalIntArrayRef dim,
                       const std::optional<at::Scalar>& correction, bool keepdim) {
  return std::get<0>(var_mean_formula(self, dim, correction, keepdim));
}

TwoTensors std_mean_formula(const at::Tensor& self, at::OptionalIntArrayRef dim,
                            const std::optional<at::Scalar>& correction, bool keepdim) {
  const auto [var, mean] = var_mean_formula(widened(self), dim, correction, keepdim);
  return {var.sqrt().to(at::toRealValueType(self.scalar_type())), mean.to(self.scalar_type())};
}

at::Tensor std_formula(const at::Tensor& self, at::OptionalIntArrayRef dim,
                       const std::optional<at::Scalar>& correction, bool keepdim) {
  return std::get<0>(std_mean_formula(self, dim, correction, keepdim));
}

// ---- positions of extremes -------------------------------------------------------------------

namespace {

at::Tensor extreme(const at::Tensor& x, at::IntArrayRef dims, bool is_max) {
  return is_max ? x.amax(dims, true) : x.amin(dims, true);
}

/// Where an element stands along `d`, for all elements, times `step`.
at::Tensor position_along(const at::Tensor& x, std::int64_t d, std::int64_t step) {
  Dims sizes(static_cast<std::size_t>(x.dim()), 1);
  sizes[static_cast<std::size_t>(d)] = x.size(d);
  return at::arange(x.size(d), at::TensorOptions(at::kLong).device(x.device()))
      .mul(step)
      .view(sizes);
}

/// The first position where x has its extreme value; NaN, where there is one, is that value.
at::Tensor position_of(const at::Tensor& x, const at::Tensor& value,
                       std::optional<std::int64_t> dim, bool keepdim) {
  at::Tensor there = x.eq(value);
  if (x.is_floating_point()) there = there.logical_or(x.ne(x));
  if (dim) {
    const std::int64_t d = *dim < 0 ? *dim + x.dim() : *dim;
    return at::where(there, position_along(x, d, 1), x.size(d)).amin(d, keepdim);
  }
  at::Tensor position = at::zeros_like(there, at::kLong);
  std::int64_t step = 1;
  for (std::int64_t d = x.dim() - 1; d >= 0; --d) {
    position = position + position_along(x, d, step);
    step *= x.size(d);
  }
  return at::where(there, position, x.numel()).amin(Dims{}, keepdim);
}

at::Tensor arg_extreme(const at::Tensor& x, std::optional<std::int64_t> dim, bool keepdim,
                       bool is_max) {
  const Dims dims = dim ? Dims{*dim} : Dims{};
  return position_of(x, extreme(x, dims, is_max), dim, keepdim);
}

TwoTensors extreme_along(const at::Tensor& x, std::int64_t dim, bool keepdim, bool is_max) {
  const at::Tensor value = extreme(x, dim, is_max);
  at::Tensor position = position_of(x, value, dim, keepdim);
  return {keepdim ? value : value.squeeze(dim), std::move(position)};
}

}  // namespace

at::Tensor argmax_formula(const at::Tensor& self, std::optional<std::int64_t> dim, bool keepdim) {
  return arg_extreme(self, dim, keepdim, true);
}

at::Tensor argmin_formula(const at::Tensor& self, std::optional<std::int64_t> dim, bool keepdim) {
  return arg_extreme(self, dim, keepdim, false);
}

TwoTensors max_formula(const at::Tensor& self, std::int64_t dim, bool keepdim) {
  return extreme_along(self, dim, keepdim, true);
}

TwoTensors min_formula(const at::Tensor& self, std::int64_t dim, bool keepdim) {
  return extreme_along(self, dim, keepdim, false);
}

// ---- norms -----------------------------------------------------------------------------------

void vector_norm_formula(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor self = args.tensor("self");
  const c10::IValue* order = args.find("ord") != nullptr ? args.find("ord") : args.find("p");
  const double p = order != nullptr ? order->toScalar().toDouble() : 2.0;
  const c10::IValue* dim = args.find("dim");
  const c10::IValue* dtype = args.find("dtype");
  const at::ScalarType type = dtype != nullptr ? dtype->toScalarType() : self.scalar_type();
  const Dims named = dim != nullptr ? dim->toIntVector() : Dims{};
  const at::Tensor sum =
      self.to(wide(type)).abs().pow(p).sum(dims_of(self, named), args.flag("keepdim"));
  at::Tensor norm = sum.pow(1 / p).to(at::toRealValueType(type));
  stack.assign(1, std::move(norm));
}

at::Tensor renorm_formula(const at::Tensor& self, const at::Scalar& p, std::int64_t dim,
                          const at::Scalar& maxnorm) {
  const at::ScalarType type = self.scalar_type();
  const bool single = at::toRealValueType(type) == at::kFloat;
  const at::ScalarType sums = !single             ? wide(type)
                              : self.is_complex() ? at::kComplexDouble
                                                  : at::kDouble;
  const at::Tensor norm = at::linalg_vector_norm(self, p, all_but(self, dim), true, sums);
  // ATen's own constant: what is scaled down stays just below the limit.
  constexpr double kMargin = 1e-7;
  const at::Tensor scaled = (norm + kMargin).reciprocal() * maxnorm;
  const at::Tensor factor = at::where(norm.gt(maxnorm), scaled, at::Scalar(1));
  return self * factor.to(at::toRealValueType(type));
}

// ---- layer norm ------------------------------------------------------------------------------

namespace {

/// The dtype of means and deviations, and of gradients of parameters: that of the parameters.
at::ScalarType parameter_type(const at::Tensor& input,
                              std::initializer_list<OptionalTensor> parameters) {
  for (const OptionalTensor& p : parameters) {
    if (is_given(p)) return p->scalar_type();
  }
  return input.scalar_type();
}

at::Tensor times(const at::Tensor& t, const at::Tensor& factor) {
  return factor.defined() ? t * widened(factor) : t;
}

at::Tensor plus(const at::Tensor& t, const at::Tensor& addend) {
  return addend.defined() ? t + widened(addend) : t;
}

at::Tensor or_undefined(const OptionalTensor& t) { return t ? *t : at::Tensor(); }

/// The gradient of a normalised input: `grad`, already times the weight, without its part along a
/// constant and along the normalised input. The two means of each group of elements.
at::Tensor gradient_within(const at::Tensor& grad, const at::Tensor& normal,
                           const at::Tensor& mean_grad, const at::Tensor& mean_product,
                           const at::Tensor& rstd) {
  return (grad - mean_grad - normal * mean_product) * rstd;
}

}  // namespace

ThreeTensors layer_norm_formula(const at::Tensor& input, at::IntArrayRef normalized_shape,
                                const OptionalTensor& weight, const OptionalTensor& bias,
                                double eps) {
  const at::Tensor x = widened(input);
  Dims dims(normalized_shape.size());
  std::iota(dims.begin(), dims.end(), x.dim() - static_cast<std::int64_t>(dims.size()));
  const at::Tensor mean = reduced(x.mean(dims, true));
  const at::Tensor deviation = x - mean;
  const at::Tensor rstd = (deviation.square().mean(dims, true) + eps).rsqrt();
  const at::Tensor out = plus(times(deviation * rstd, or_undefined(weight)), or_undefined(bias));
  const at::ScalarType type = parameter_type(input, {weight, bias});
  return {out.to(input.scalar_type()), mean.to(type), rstd.to(type)};
}

ThreeTensors layer_norm_backward_formula(const at::Tensor& grad, const at::Tensor& input,
                                         at::IntArrayRef normalized_shape, const at::Tensor& mean,
                                         const at::Tensor& rstd, const OptionalTensor& weight,
                                         const OptionalTensor& bias, std::array<bool, 3> mask) {
  const at::Tensor g = widened(grad);
  const at::Tensor normal = (widened(input) - widened(mean)) * widened(rstd);
  Dims batch(static_cast<std::size_t>(input.dim()) - normalized_shape.size());
  std::iota(batch.begin(), batch.end(), 0);
  Dims dims(normalized_shape.size());
  std::iota(dims.begin(), dims.end(), static_cast<std::int64_t>(batch.size()));
  ThreeTensors out;
  if (mask[0]) {
    const at::Tensor weighted = times(g, or_undefined(weight));
    const at::Tensor means =
        reduced(at::stack({weighted.mean(dims, true), (weighted * normal).mean(dims, true)}));
    std::get<0>(out) =
        gradient_within(weighted, normal, means.select(0, 0), means.select(0, 1), widened(rstd))
            .to(input.scalar_type());
  }
  const at::ScalarType type = parameter_type(mean, {weight, bias});
  if (mask[1]) std::get<1>(out) = sum_over(g * normal, batch).to(type);
  if (mask[2]) std::get<2>(out) = sum_over(g, batch).to(type);
  return out;
}

// ---- group norm ------------------------------------------------------------------------------

namespace {

/// [..., channels] as it stands beside an input with channels in dimension 1, and more after it.
at::Tensor beside_input(const at::Tensor& t, const at::Tensor& input) {
  if (!t.defined()) return t;
  Dims sizes = t.sizes().vec();
  if (sizes.size() == 1) sizes.insert(sizes.begin(), 1);
  sizes.resize(static_cast<std::size_t>(input.dim()), 1);
  return t.reshape(sizes);
}

/// Sums over what comes after the channels: [n, channels].
at::Tensor sum_per_channel(const at::Tensor& t) {
  Dims after(static_cast<std::size_t>(t.dim() - 2));
  std::iota(after.begin(), after.end(), 2);
  return sum_over(t, after);
}

/// [..., channels] -> [..., groups], summed.
at::Tensor sum_per_group(const at::Tensor& per_channel, std::int64_t groups) {
  Dims sizes = per_channel.sizes().vec();
  sizes.back() /= std::max<std::int64_t>(groups, 1);
  sizes.insert(sizes.end() - 1, groups);
  return per_channel.reshape(sizes).sum(-1);
}

/// [n, groups] for each channel, beside the input.
at::Tensor of_group(const at::Tensor& t, const at::Tensor& input) {
  const std::int64_t each = input.size(1) / std::max<std::int64_t>(t.size(1), 1);
  return beside_input(
      t.unsqueeze(2).expand({t.size(0), t.size(1), each}).reshape({t.size(0), input.size(1)}),
      input);
}

}  // namespace

ThreeTensors group_norm_formula(const at::Tensor& input, const OptionalTensor& weight,
                                const OptionalTensor& bias, std::int64_t /*n*/,
                                std::int64_t channels, std::int64_t spatial, std::int64_t group,
                                double eps) {
  const at::Tensor x = widened(input);
  const auto count = static_cast<double>(channels / group * spatial);
  const auto mean_per_group = [&](const at::Tensor& t) {
    return sum_per_group(sum_per_channel(t), group) / count;
  };
  const at::Tensor mean = reduced(mean_per_group(x));
  const at::Tensor deviation = x - of_group(mean, x);
  const at::Tensor rstd = (mean_per_group(deviation.square()) + eps).rsqrt();
  const at::Tensor out =
      plus(times(deviation * of_group(rstd, x), beside_input(or_undefined(weight), x)),
           beside_input(or_undefined(bias), x));
  const at::ScalarType type = parameter_type(input, {weight, bias});
  return {out.to(input.scalar_type()), mean.to(type), rstd.to(type)};
}

ThreeTensors group_norm_backward_formula(const at::Tensor& grad, const at::Tensor& input,
                                         const at::Tensor& mean, const at::Tensor& rstd,
                                         const OptionalTensor& weight, std::int64_t /*n*/,
                                         std::int64_t channels, std::int64_t spatial,
                                         std::int64_t group, std::array<bool, 3> mask) {
  const at::Tensor g = widened(grad);
  const at::Tensor scale = of_group(widened(rstd), input);
  const at::Tensor normal = (widened(input) - of_group(widened(mean), input)) * scale;
  ThreeTensors out;
  if (mask[0]) {
    const at::Tensor weighted = times(g, beside_input(or_undefined(weight), input));
    const at::Tensor sums =
        at::stack({sum_per_channel(weighted), sum_per_channel(weighted * normal)});
    const at::Tensor means =
        reduced(sum_per_group(sums, group) / static_cast<double>(channels / group * spatial));
    std::get<0>(out) = gradient_within(weighted, normal, of_group(means.select(0, 0), input),
                                       of_group(means.select(0, 1), input), scale)
                           .to(input.scalar_type());
  }
  const Dims dims = all_but(input, 1);
  const at::ScalarType type = parameter_type(mean, {weight});
  if (mask[1]) std::get<1>(out) = (g * normal).sum(dims).to(type);
  if (mask[2]) std::get<2>(out) = g.sum(dims).to(type);
  return out;
}

// ---- batch norm ------------------------------------------------------------------------------

void batch_norm_formula(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const Arguments args(op, stack);
  const std::string& name = op.schema().name();
  const at::Tensor input = args.tensor("input");
  const at::Tensor weight = args.tensor("weight");
  const at::Tensor bias = args.tensor("bias");
  const at::Tensor running_mean = args.tensor("running_mean");
  const at::Tensor running_var = args.tensor("running_var");
  const double momentum = args.find("momentum")->toDouble();
  const at::Tensor x = widened(input);
  const Dims dims = all_but(x, 1);
  const auto count = static_cast<double>(count_over(x, dims));

  // Some ops give the running statistics as results also where they do not use those of the batch.
  const bool training = args.find("training") == nullptr || args.flag("training");
  const at::Tensor mean = training ? reduced(x.mean(dims)) : widened(running_mean);
  const at::Tensor deviation = x - beside_input(mean, x);
  const at::Tensor var = training ? reduced(deviation.square().mean(dims)) : widened(running_var);
  const at::Tensor invstd = (var + args.find("eps")->toDouble()).rsqrt();
  const at::Tensor out =
      plus(deviation * beside_input(times(invstd, weight), x), beside_input(bias, x));

  const at::ScalarType type = parameter_type(input, {weight, bias, running_mean, running_var});
  const auto saved = [&](const at::Tensor& t) {
    return training ? t.to(type) : input.new_empty({0}, type);
  };
  torch::jit::Stack results{out.to(input.scalar_type()), saved(mean), saved(invstd)};
  if (name.find("with_update") != std::string::npos) {
    results.emplace_back(input.new_empty({0}, at::kByte));  // what cuDNN would keep for backward
  }
  const auto updated = [&](const at::Tensor& running, const at::Tensor& now) {
    if (!training) return running.clone();
    return (widened(running) * (1 - momentum) + now * momentum).to(running.scalar_type());
  };
  const at::Tensor unbiased = var * (count / (count - 1));
  if (name.ends_with("_functional")) {
    results.emplace_back(updated(running_mean, mean));
    results.emplace_back(updated(running_var, unbiased));
  } else {
    if (running_mean.defined()) running_mean.copy_(updated(running_mean, mean));
    if (running_var.defined()) running_var.copy_(updated(running_var, unbiased));
  }
  stack = std::move(results);
}

void batch_norm_backward_formula(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor input = args.tensor("input");
  const at::Tensor weight = args.tensor("weight");
  const at::Tensor mean = args.tensor("save_mean");
  const bool native = args.find("save_invstd") != nullptr;
  const at::Tensor invstd = widened(args.tensor(native ? "save_invstd" : "save_var"));
  const auto mask = args.find("output_mask")->toBoolList();
  const at::Tensor g = widened(args.tensor("grad_out"));
  const Dims dims = all_but(input, 1);
  const auto count = static_cast<double>(count_over(input, dims));

  const at::Tensor normal =
      (widened(input) - beside_input(widened(mean), input)) * beside_input(invstd, input);
  // The gradients of bias and weight are what the gradient of the input needs, too.
  const at::Tensor sums = reduced(at::stack({g.sum(dims), (g * normal).sum(dims)}));
  const at::Tensor means = sums / count;
  at::Tensor grad_input = gradient_within(g, normal, beside_input(means.select(0, 0), input),
                                          beside_input(means.select(0, 1), input),
                                          beside_input(times(invstd, weight), input))
                              .to(input.scalar_type());
  const at::ScalarType type = parameter_type(mean, {weight});
  stack = {mask.get(0) ? grad_input : at::Tensor(),
           mask.get(1) ? sums.select(0, 1).to(type) : at::Tensor(),
           mask.get(2) ? sums.select(0, 0).to(type) : at::Tensor()};
}

}  // namespace intarsia::rules
