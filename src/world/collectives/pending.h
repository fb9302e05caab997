// What a Pending holds, and how the collectives make one.
#pragma once

#include <exception>
#include <functional>
#include <string_view>
#include <vector>

#include "intarsia/collectives.h"
#include "world/collectives/wire.h"

namespace intarsia {

struct Pending::State {
  std::string_view what;
  Works works;
  std::vector<at::Tensor> buffers;  // alive until the works are done
  std::function<std::vector<at::Tensor>()> finish;
  std::vector<at::Tensor> result;
  std::exception_ptr error;
  int exceptions = std::uncaught_exceptions();  // that were passing by when it was made
};

/// A result that needed no communication.
Pending ready(std::vector<at::Tensor> result);

/// A result that `finish` computes once the works are done. `buffers` live until then.
Pending pending(std::string_view what, Works works, std::vector<at::Tensor> buffers,
                std::function<std::vector<at::Tensor>()> finish);

/// The same, with results that `then` makes of those.
Pending after(Pending pending,
              std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)> then);

}  // namespace intarsia
