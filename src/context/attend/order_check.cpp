#include "context/attend/order_check.h"

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/tensor.h"
#include "tensor/call/frame.h"

namespace intarsia::context {
namespace {

/// Which dimensions an op takes as neighbours that follow each other.
enum class Mixes : std::uint8_t {
  dim,      ///< that of its argument `dim`
  dims,     ///< those of its argument `dims`
  part,     ///< that of `dim`, unless it takes all of it
  padded,   ///< those that it pads
  windows,  ///< all but the first two
};

struct Mixing {
  std::string_view op;  // without overload
  Mixes how;
};

// What models do along a sequence. Ops that take all positions alike (sums, norms, softmax) are not
// here.
constexpr std::array kMixing{
    Mixing{"slice", Mixes::part},
    Mixing{"select", Mixes::dim},
    Mixing{"split", Mixes::dim},
    Mixing{"split_with_sizes", Mixes::dim},
    Mixing{"unbind", Mixes::dim},
    Mixing{"unfold", Mixes::dim},
    Mixing{"index_select", Mixes::dim},
    Mixing{"gather", Mixes::dim},
    Mixing{"cumsum", Mixes::dim},
    Mixing{"cumprod", Mixes::dim},
    Mixing{"logcumsumexp", Mixes::dim},
    Mixing{"_cummax_helper", Mixes::dim},
    Mixing{"_cummin_helper", Mixes::dim},
    Mixing{"argmax", Mixes::dim},
    Mixing{"argmin", Mixes::dim},
    Mixing{"sort", Mixes::dim},
    Mixing{"topk", Mixes::dim},
    Mixing{"roll", Mixes::dims},
    Mixing{"flip", Mixes::dims},
    Mixing{"constant_pad_nd", Mixes::padded},
    Mixing{"reflection_pad1d", Mixes::windows},
    Mixing{"replication_pad1d", Mixes::windows},
    Mixing{"convolution", Mixes::windows},
    Mixing{"convolution_overrideable", Mixes::windows},
    Mixing{"avg_pool2d", Mixes::windows},
    Mixing{"max_pool2d_with_indices", Mixes::windows},
    Mixing{"im2col", Mixes::windows},
    Mixing{"upsample_linear1d", Mixes::windows},
    Mixing{"upsample_nearest1d", Mixes::windows},
};

std::int64_t number(const Frame& call, std::string_view name, std::int64_t otherwise) {
  const c10::IValue* value = call.argument(name);
  return value != nullptr && value->isInt() ? value->toInt() : otherwise;
}

/// Whether an op takes the elements of a dimension as neighbours.
bool mixes(const Frame& call, const Mixing& mixing, std::int64_t dim, const at::Tensor& t) {
  const auto is_dim = [&](std::int64_t given) { return (given + t.dim()) % t.dim() == dim; };
  switch (mixing.how) {
    case Mixes::dim:
      return is_dim(number(call, "dim", number(call, "dimension", 0)));
    case Mixes::part: {
      const bool is_all =
          number(call, "start", 0) == 0 && number(call, "step", 1) == 1 &&
          number(call, "end", std::numeric_limits<std::int64_t>::max()) >= t.size(dim);
      return is_dim(number(call, "dim", 0)) && !is_all;
    }
    case Mixes::dims: {
      const c10::IValue* dims = call.argument("dims");
      if (dims == nullptr || !dims->isIntList() || dims->toIntVector().empty()) return true;
      const auto list = dims->toIntVector();
      return std::any_of(list.begin(), list.end(), is_dim);
    }
    case Mixes::padded: {
      const c10::IValue* pad = call.argument("pad");
      const auto list =
          pad != nullptr && pad->isIntList() ? pad->toIntVector() : std::vector<std::int64_t>();
      const auto at = static_cast<std::size_t>(2 * (t.dim() - 1 - dim));
      return at + 1 < list.size() && (list[at] != 0 || list[at + 1] != 0);
    }
    case Mixes::windows:
      return dim >= (t.dim() > 2 ? 2 : 1);
  }
  return false;
}

std::string ordered_text(const SequenceOrder& order) {
  std::string text = order.to_string();
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  return concat("the sequence, which is stored in the order ", text, " inside of this scope");
}

}  // namespace

void check_order(const SequenceOrder& order, const Frame& call) {
  if (torch::autograd::get_current_node() != nullptr) return;  // forward was looked at
  const std::int64_t size = order.size();
  for (const Frame::Tensor& t : call.tensors) {
    if (!t.given() || t.impl != nullptr) continue;
    const auto sizes = t.tensor->sizes();
    if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) continue;
    call.refuse(concat("the plain tensor ", describe(*t.tensor), " is as long as ",
                       ordered_text(order), ", and nothing says in which order it is"),
                "if a model makes it from positions, pass the model its positions (position_ids), "
                "laid out as the tokens are; else put it in_order and distribute it");
  }
  const auto mixing = std::find_if(kMixing.begin(), kMixing.end(), [&](const Mixing& each) {
    return each.op == call.info.base_name;
  });
  if (mixing == kMixing.end()) return;
  for (const Frame::Tensor& t : call.tensors) {
    if (!t.given() || t.impl == nullptr) continue;
    for (std::int64_t dim = 0; dim < t.tensor->dim(); ++dim) {
      const bool is_sequence = t.tensor->size(dim) == size &&
                               !layout_of(*t.tensor).axes_of(static_cast<int>(dim)).empty();
      if (!is_sequence || !mixes(call, *mixing, dim, *t.tensor)) continue;
      call.refuse(concat("it takes neighbours along dimension ", dim, " of ", describe(*t.tensor),
                         " for neighbours in ", ordered_text(order)),
                  "do it to the full sequence before it is put in_order and distributed (labels: "
                  "next_tokens), or use the contiguous order");
    }
  }
}

}  // namespace intarsia::context
