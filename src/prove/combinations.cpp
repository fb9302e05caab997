#include "prove/combinations.h"

#include <algorithm>
#include <cmath>

#include "base/hash.h"
#include "tensor/call/op_info.h"
#include "tensor/core/spec.h"

namespace intarsia {
namespace {

using torch::jit::Stack;

/// The combinations that the rows of the rule name, and each of them with one tensor replicated.
std::vector<Combination> of_rule(const Sample& sample, const Stack& arguments) {
  std::vector<Combination> out;
  for (const Row& row : rows_of(sample, arguments)) {
    out.push_back(row.in);
    for (std::size_t i = 0; i < row.in.size(); ++i) {
      if (row.in[i].is_replicate()) continue;
      out.push_back(row.in);
      out.back()[i] = Placement::replicate();
    }
  }
  return out;
}

}  // namespace

std::vector<Placement> placements_for(const TensorSample& tensor) {
  std::vector<Placement> out{Placement::replicate()};
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    out.push_back(Placement::shard(static_cast<int>(d)));
  }
  for (std::size_t d = 0; d < tensor.sizes.size(); ++d) {
    if (tensor.sizes[d] < 5) continue;
    out.push_back(Placement::strided_shard(static_cast<int>(d), 2));
    break;
  }
  // No partial values can be made up for what is not finite.
  const bool finite = std::all_of(tensor.numbers.begin(), tensor.numbers.end(),
                                  [](double v) { return std::isfinite(v); });
  if (!finite) return out;
  for (const Reduction r : {Reduction::sum, Reduction::avg, Reduction::max, Reduction::min,
                            Reduction::product, Reduction::bit_or, Reduction::bit_and}) {
    if (!is_exact(r, tensor.dtype)) continue;
    // Integers have no room for differing factors, and bits are for truth values here.
    const bool integral = tensor.dtype < DType::f8e4m3;
    if (r == Reduction::product && (integral || tensor.dtype >= DType::c32)) continue;
    if ((r == Reduction::bit_or || r == Reduction::bit_and) && tensor.dtype != DType::b1) continue;
    if ((r == Reduction::min || r == Reduction::max) && tensor.dtype == DType::u8) continue;
    out.push_back(Placement::partial(r));
  }
  return out;
}

std::vector<Row> rows_of(const Sample& sample, const Stack& arguments) {
  const OpInfo info(sample.op);
  if (!info.rule) return {};
  std::vector<Operand> operands;
  std::vector<std::size_t> given;
  const auto add = [&](const c10::IValue& value) {
    if (value.isTensor()) {
      given.push_back(operands.size());
      const at::Tensor& t = value.toTensor();
      operands.push_back({to_shape(t.sizes()), t.scalar_type(), true});
    } else {
      operands.emplace_back();
    }
  };
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    if (info.arguments[i].kind == ArgumentKind::tensor) {
      add(arguments[i]);
    } else if (info.arguments[i].kind == ArgumentKind::tensor_list && arguments[i].isList()) {
      for (const c10::IValue& element : arguments[i].toListRef()) add(element);
    }
  }
  const Question question(sample.op.schema(), arguments, operands);
  std::vector<Row> rows = info.rule->rows(question);
  for (Row& row : rows) {
    std::vector<Placement> in;
    for (const std::size_t i : given) in.push_back(row.in[i]);
    row.in = std::move(in);
  }
  return rows;
}

std::vector<Combination> combinations(const Sample& sample, const Stack& arguments,
                                      std::size_t most) {
  std::vector<std::vector<Placement>> choices;
  std::size_t count = 1;
  for (const TensorSample* t : sample.tensors()) {
    choices.push_back(placements_for(*t));
    count = std::min<std::size_t>(count * choices.back().size(), 1'000'000);
  }
  std::vector<Combination> out;
  if (count <= most) {
    for (std::size_t k = 0; k < count; ++k) {
      Combination c;
      std::size_t rest = k;
      for (const auto& choice : choices) {
        c.push_back(choice[rest % choice.size()]);
        rest /= choice.size();
      }
      out.push_back(std::move(c));
    }
    return out;
  }
  out = of_rule(sample, arguments);
  std::uint64_t lot = hash_text(sample.to_string());
  while (out.size() < most) {
    Combination c;
    for (const auto& choice : choices) {
      lot = hash_mix(lot, c.size());
      c.push_back(choice[lot % choice.size()]);
    }
    out.push_back(std::move(c));
  }
  return out;
}

Mesh one_axis(std::int64_t n) { return Mesh({{"a", n}}); }

std::vector<Layout> on_axis(const Mesh& mesh, const Combination& placements) {
  std::vector<Layout> out;
  for (const Placement& p : placements) out.emplace_back(mesh, std::vector<Placement>{p});
  return out;
}

}  // namespace intarsia
