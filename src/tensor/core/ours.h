// The tensors that a public function takes.
#pragma once

#include <string_view>

#include "tensor/core/impl.h"

namespace intarsia {

/// The distributed tensor that was given. ValueError for any other; `where` names the user's call.
DistributedImpl& ours(std::string_view where, const at::Tensor& tensor);

}  // namespace intarsia
