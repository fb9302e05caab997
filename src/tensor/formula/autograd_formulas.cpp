// Formulas of ATen that write into a plain tensor, read memory or send much, in a form that stays
// distributed.
#include "tensor/formula/autograd_formulas.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <limits>
#include <numeric>

#include "intarsia/tensor.h"
#include "rules/formulas.h"
#include "tensor/core/impl.h"

namespace intarsia {
namespace {

/// The gradient of max(dim), sort, topk and their like: it goes where the values came from.
at::Tensor value_selecting_reduction_backward(const at::Tensor& grad, std::int64_t dim,
                                              const at::Tensor& indices, c10::SymIntArrayRef sizes,
                                              bool keepdim) {
  const bool widen = !keepdim && !sizes.empty();
  const at::Tensor g = widen ? grad.unsqueeze(dim) : grad;
  const at::Tensor i = widen ? indices.unsqueeze(dim) : indices;
  return g.new_zeros_symint(sizes).scatter(dim, i, g);
}

/// Compares with every class instead of writing into zeros. Classes that are told are not compared
/// with the values, which would communicate: a value outside of them gives zeros.
at::Tensor one_hot(const at::Tensor& self, std::int64_t num_classes) {
  TORCH_CHECK(self.scalar_type() == at::kLong, "one_hot is only applicable to index tensor.");
  const bool known = num_classes != -1;
  TORCH_CHECK(!known || num_classes > 0, "num_classes should be positive");
  if (self.numel() == 0) {
    TORCH_CHECK(known, "Can not infer total number of classes from empty tensor.");
  } else if (!known) {
    const auto [least, most] = self.aminmax();
    TORCH_CHECK(least.item<std::int64_t>() >= 0, "Class values must be non-negative.");
    num_classes = most.item<std::int64_t>() + 1;
  }
  const at::Tensor classes =
      at::arange(num_classes, at::TensorOptions(at::kLong).device(self.device()));
  return self.unsqueeze(-1).eq(classes).to(at::kLong);
}

/// Integers that an op needs to know: a small tensor, read on every rank.
std::vector<std::int64_t> numbers(const at::Tensor& t) {
  const at::Tensor values =
      (is_ours(t) ? full(t.detach()) : t.detach()).to(at::kCPU, at::kLong).contiguous();
  const auto* first = values.const_data_ptr<std::int64_t>();
  return {first, first + values.numel()};
}

std::vector<at::Tensor> tensor_split(const at::Tensor& self, const at::Tensor& where,
                                     std::int64_t dim) {
  const auto places = numbers(where);
  if (where.dim() == 0) return at::tensor_split(self, places[0], dim);
  return at::tensor_split(self, at::IntArrayRef(places), dim);
}

at::Tensor ctc_loss(const at::Tensor& log_probs, const at::Tensor& targets,
                    const at::Tensor& input_lengths, const at::Tensor& target_lengths,
                    std::int64_t blank, std::int64_t reduction, bool zero_infinity) {
  return at::ctc_loss(log_probs, targets, at::IntArrayRef(numbers(input_lengths)),
                      at::IntArrayRef(numbers(target_lengths)), blank, reduction, zero_infinity);
}

/// What a number of this type, float or wider, can differ from 1.
double precision_of(at::ScalarType type) {
  return at::toRealValueType(type) == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                  : std::numeric_limits<float>::epsilon();
}

/// The sum of squares of each row. Its gradient needs one number for each row, which is added up
/// before it is spread over the elements: ATen's would be a partial value for every element.
struct RowSquares : torch::autograd::Function<RowSquares> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            at::IntArrayRef dims) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({x});
    return at::linalg_vector_norm(x, 2, dims, /*keepdim=*/true).square();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    const at::Tensor x = ctx->get_saved_variables()[0];
    return {x * (grads[0] * 2 + 0), at::Tensor()};
  }
};

/// Complex numbers are squared as they are, which gives no sum of squares.
at::Tensor rms_norm(const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                    const std::optional<at::Tensor>& weight, std::optional<double> eps) {
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(normalized_shape);
  TORCH_CHECK(!sizes.empty() && input.dim() >= static_cast<std::int64_t>(sizes.size()) &&
                  input.sizes().slice(input.sizes().size() - sizes.size()) == sizes,
              "rms_norm: an input of sizes ", input.sizes(), " does not end in normalized_shape ",
              sizes);
  TORCH_CHECK(!weight || !weight->defined() || weight->sizes() == sizes,
              "rms_norm: weight has sizes ", weight->sizes(), " instead of ", sizes);
  const at::ScalarType type = input.scalar_type();
  const at::Tensor x = rules::widened(input);
  std::vector<std::int64_t> dims(sizes.size());
  std::iota(dims.begin(), dims.end(), input.dim() - static_cast<std::int64_t>(sizes.size()));
  const auto count = static_cast<double>(c10::multiply_integers(sizes));
  const at::Tensor mean_square =
      x.is_complex() ? x.square().mean(dims, true) : RowSquares::apply(x, dims).div(count);
  const at::Tensor out = x * mean_square.add(eps.value_or(precision_of(x.scalar_type()))).rsqrt();
  return (weight && weight->defined() ? out * *weight : out)
      .to(type)
      .contiguous(input.suggest_memory_format());
}

/// The gradient of cummax and cummin: each goes to the element that was the largest so far.
at::Tensor cummaxmin_backward(const at::Tensor& grad, const at::Tensor& input,
                              const at::Tensor& indices, std::int64_t dim) {
  return at::zeros_like(input).scatter_add(dim, indices, grad);
}

/// Counts, or sums of weights, that each rank adds up of what it has.
at::Tensor bincount(const at::Tensor& self, const std::optional<at::Tensor>& weights,
                    c10::SymInt minlength) {
  TORCH_CHECK(self.dim() == 1 && at::isIntegralType(self.scalar_type(), /*includeBool=*/false),
              "bincount only supports 1-d non-negative integral inputs.");
  std::int64_t size = minlength.expect_int();
  TORCH_CHECK(size >= 0, "minlength should be >= 0");
  if (self.numel() == 0) return self.new_zeros({size}, at::kLong);
  const auto [least, most] = self.aminmax();
  TORCH_CHECK(least.item<std::int64_t>() >= 0,
              "bincount only supports 1-d non-negative integral inputs.");
  size = std::max(size, most.item<std::int64_t>() + 1);
  at::Tensor each = weights && weights->defined() ? *weights : at::ones_like(self, at::kLong);
  TORCH_CHECK(each.sizes() == self.sizes(),
              "weights should be 1-d and have the same length as input");
  if (each.scalar_type() != at::kFloat && weights && weights->defined())
    each = each.to(at::kDouble);
  return each.new_zeros({size}).scatter_add(0, self.to(at::kLong), each);
}

at::Tensor trace_backward(const at::Tensor& grad, c10::SymIntArrayRef sizes) {
  const at::IntArrayRef n = C10_AS_INTARRAYREF_SLOW(sizes);
  return grad * at::eye(n[0], n[1], grad.options());
}

/// Turned round last: the result is no view.
at::Tensor rot90(const at::Tensor& self, std::int64_t k, at::IntArrayRef dims) {
  TORCH_CHECK(dims.size() == 2, "expected total rotation dims == 2, but got dims = ", dims.size());
  switch ((k % 4 + 4) % 4) {
    case 1:
      return self.transpose(dims[0], dims[1]).flip({dims[0]});
    case 2:
      return self.flip(dims);
    case 3:
      return self.transpose(dims[0], dims[1]).flip({dims[1]});
    default:
      return self.clone(at::MemoryFormat::Contiguous);
  }
}

at::Tensor rsub(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  return at::sub(other, self, alpha);
}

bool allclose(const at::Tensor& self, const at::Tensor& other, double rtol, double atol,
              bool equal_nan) {
  return at::isclose(self, other, rtol, atol, equal_nan).all().item<bool>();
}

at::Tensor dist(const at::Tensor& self, const at::Tensor& other, const at::Scalar& p) {
  return at::norm(self - other, p);
}

/// ATen writes the losses of elements into `out` before that has the sizes of the result.
at::Tensor& binary_cross_entropy_out(const at::Tensor& self, const at::Tensor& target,
                                     const std::optional<at::Tensor>& weight,
                                     std::int64_t reduction, at::Tensor& out) {
  return out.copy_(at::binary_cross_entropy(self, target, weight, reduction));
}

/// How many singular values are above atol and above rtol of the largest.
at::Tensor matrix_rank(const at::Tensor& self, const std::optional<at::Tensor>& atol,
                       const std::optional<at::Tensor>& rtol, bool hermitian) {
  const at::Tensor values = hermitian ? at::linalg_eigvalsh(self).abs() : at::linalg_svdvals(self);
  if (self.numel() == 0) return values.sum(-1).to(at::kLong);
  const at::Tensor least = atol ? *atol : at::zeros({}, at::kDouble);
  at::Tensor part;
  if (rtol) {
    part = *rtol;
  } else {  // as ATen: by the precision, but nothing where atol says what is to be counted
    const double precision = precision_of(values.scalar_type());
    const auto longest = static_cast<double>(std::max(self.size(-1), self.size(-2)));
    part = least.le(0).to(at::kDouble) * (precision * longest);
  }
  const at::Tensor bound =
      at::maximum(least.unsqueeze(-1), part.unsqueeze(-1) * values.amax(-1, true));
  return values.gt(bound).sum(-1);
}

at::Tensor matrix_rank_of_numbers(const at::Tensor& self, std::optional<double> atol,
                                  std::optional<double> rtol, bool hermitian) {
  const auto tensor = [](std::optional<double> x) {
    return x ? std::optional(at::scalar_tensor(*x, at::kDouble)) : std::nullopt;
  };
  return matrix_rank(self, tensor(atol), tensor(rtol), hermitian);
}

at::Tensor matrix_rank_above(const at::Tensor& self, double tol, bool hermitian) {
  return matrix_rank_of_numbers(self, tol, 0.0, hermitian);
}

at::Tensor matrix_rank_above_tensor(const at::Tensor& self, const at::Tensor& tol, bool hermitian) {
  return matrix_rank(self, tol, at::zeros({}, at::kDouble), hermitian);
}

// ---- exp of matrices -------------------------------------------------------------------------

/// ATen writes the matrix of four blocks, whose exponential has the gradient in it, into zeros.
struct MatrixExp : torch::autograd::Function<MatrixExp> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& self) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->set_materialize_grads(false);
    context->save_for_backward({self});
    return at::linalg_matrix_exp(self);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    if (!grads[0].defined()) return {at::Tensor()};
    const at::Tensor self = context->get_saved_variables()[0].mH();
    const std::int64_t n = self.size(-1);
    const at::Tensor blocks =
        at::cat({at::cat({self, grads[0]}, -1), at::cat({at::zeros_like(self), self}, -1)}, -2);
    return {at::linalg_matrix_exp(blocks).narrow(-2, 0, n).narrow(-1, n, n)};
  }
};

// ---- copies of views -------------------------------------------------------------------------

at::Tensor copied(const at::Tensor& view) { return view.clone(at::MemoryFormat::Contiguous); }

std::vector<at::Tensor> copied(const std::vector<at::Tensor>& views) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& view : views) out.push_back(copied(view));
  return out;
}

/// The view, and then a copy of it: both have rules of their own.
void register_copies(torch::Library& library) {
  using at::Tensor;
  using Int = std::int64_t;
  library.impl("alias_copy", [](const Tensor& x) { return copied(x); });
  library.impl("detach_copy", [](const Tensor& x) { return copied(x.detach()); });
  library.impl("diagonal_copy", [](const Tensor& x, Int offset, Int dim1, Int dim2) {
    return copied(x.diagonal(offset, dim1, dim2));
  });
  library.impl("expand_copy", [](const Tensor& x, c10::SymIntArrayRef sizes, bool implicit) {
    return copied(x.expand_symint(sizes, implicit));
  });
  library.impl("narrow_copy", [](const Tensor& x, Int dim, c10::SymInt start, c10::SymInt length) {
    return copied(x.narrow_symint(dim, std::move(start), std::move(length)));
  });
  library.impl("permute_copy",
               [](const Tensor& x, at::IntArrayRef dims) { return copied(x.permute(dims)); });
  library.impl("select_copy.int", [](const Tensor& x, Int dim, c10::SymInt index) {
    return copied(x.select_symint(dim, std::move(index)));
  });
  library.impl("slice_copy.Tensor", [](const Tensor& x, Int dim, std::optional<c10::SymInt> start,
                                       std::optional<c10::SymInt> end, c10::SymInt step) {
    return copied(x.slice_symint(dim, std::move(start), std::move(end), std::move(step)));
  });
  library.impl("split_copy.Tensor", [](const Tensor& x, c10::SymInt size, Int dim) {
    return copied(x.split_symint(std::move(size), dim));
  });
  library.impl("split_with_sizes_copy", [](const Tensor& x, c10::SymIntArrayRef sizes, Int dim) {
    return copied(x.split_with_sizes_symint(sizes, dim));
  });
  library.impl("squeeze_copy", [](const Tensor& x) { return copied(x.squeeze()); });
  library.impl("squeeze_copy.dim", [](const Tensor& x, Int dim) { return copied(x.squeeze(dim)); });
  library.impl("squeeze_copy.dims",
               [](const Tensor& x, at::IntArrayRef dims) { return copied(x.squeeze(dims)); });
  library.impl("t_copy", [](const Tensor& x) { return copied(x.t()); });
  library.impl("transpose_copy.int",
               [](const Tensor& x, Int dim0, Int dim1) { return copied(x.transpose(dim0, dim1)); });
  library.impl("unbind_copy.int", [](const Tensor& x, Int dim) { return copied(x.unbind(dim)); });
  library.impl("unfold_copy", [](const Tensor& x, Int dim, Int size, Int step) {
    return copied(x.unfold(dim, size, step));
  });
  library.impl("unsqueeze_copy", [](const Tensor& x, Int dim) { return copied(x.unsqueeze(dim)); });
  library.impl("view_copy", [](const Tensor& x, c10::SymIntArrayRef sizes) {
    return copied(x.view_symint(sizes));
  });
  // Not views for autograd, so that they can be written in place.
  library.impl("unsafe_split.Tensor", [](const Tensor& x, c10::SymInt size, Int dim) {
    return copied(x.split_symint(std::move(size), dim));
  });
  library.impl("unsafe_split_with_sizes", [](const Tensor& x, c10::SymIntArrayRef sizes, Int dim) {
    return copied(x.split_with_sizes_symint(sizes, dim));
  });
}

}  // namespace

void register_formulas() {
  static auto* const library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse3, __FILE__, __LINE__);
  library->impl("allclose", allclose);
  library->impl("bincount", bincount);
  library->impl("binary_cross_entropy.out", binary_cross_entropy_out);
  library->impl("ctc_loss.Tensor", ctc_loss);
  library->impl("cummaxmin_backward", cummaxmin_backward);
  library->impl("dist", dist);
  library->impl("linalg_matrix_exp", [](const at::Tensor& self) { return MatrixExp::apply(self); });
  library->impl("linalg_matrix_rank", matrix_rank_above);
  library->impl("linalg_matrix_rank.atol_rtol_float", matrix_rank_of_numbers);
  library->impl("linalg_matrix_rank.atol_rtol_tensor", matrix_rank);
  library->impl("linalg_matrix_rank.tol_tensor", matrix_rank_above_tensor);
  library->impl("one_hot", one_hot);
  library->impl("rms_norm", rms_norm);
  library->impl("rot90", rot90);
  library->impl("rsub.Tensor", rsub);
  library->impl("tensor_split.tensor_indices_or_sections", tensor_split);
  library->impl("trace_backward", trace_backward);
  library->impl("value_selecting_reduction_backward", value_selecting_reduction_backward);
  register_copies(*library);
  register_vocabulary(*library);
}

}  // namespace intarsia
