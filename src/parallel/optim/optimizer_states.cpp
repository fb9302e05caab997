#include "parallel/optim/optimizer_states.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "base/text.h"
#include "intarsia/error.h"
#include "intarsia/optim.h"

namespace intarsia {
namespace {

namespace optim = torch::optim;

[[noreturn]] void refuse(std::string_view where, std::string_view way) {
  fail<UnsupportedError>(
      where, "knows the states of Adam, AdamW, SGD, Adagrad, RMSprop and Muon only; ", way);
}

template <class State>
StateParts averages_of(State& s) {
  return {{{"exp_avg", &s.exp_avg()},
           {"exp_avg_sq", &s.exp_avg_sq()},
           {"max_exp_avg_sq", &s.max_exp_avg_sq()}},
          &s.step()};
}

}  // namespace

StateParts parts_of(std::string_view where, optim::OptimizerParamState& state) {
  if (auto* s = dynamic_cast<optim::AdamParamState*>(&state)) return averages_of(*s);
  if (auto* s = dynamic_cast<optim::AdamWParamState*>(&state)) return averages_of(*s);
  if (auto* s = dynamic_cast<optim::SGDParamState*>(&state)) {
    return {{{"momentum_buffer", &s->momentum_buffer()}}};
  }
  if (auto* s = dynamic_cast<optim::AdagradParamState*>(&state)) {
    return {{{"sum", &s->sum()}}, &s->step()};
  }
  if (auto* s = dynamic_cast<optim::RMSpropParamState*>(&state)) {
    return {{{"square_avg", &s->square_avg()},
             {"momentum_buffer", &s->momentum_buffer()},
             {"grad_avg", &s->grad_avg()}},
            &s->step()};
  }
  if (auto* s = dynamic_cast<MuonParamState*>(&state)) {
    return {{{"momentum_buffer", &s->momentum_buffer()}}};
  }
  refuse(where, "list those of others as OptimizerState");
}

std::unique_ptr<optim::OptimizerParamState> empty_state(std::string_view where,
                                                        const optim::Optimizer& optimizer) {
  if (dynamic_cast<const optim::Adam*>(&optimizer) != nullptr) {
    return std::make_unique<optim::AdamParamState>();
  }
  if (dynamic_cast<const optim::AdamW*>(&optimizer) != nullptr) {
    return std::make_unique<optim::AdamWParamState>();
  }
  if (dynamic_cast<const optim::SGD*>(&optimizer) != nullptr) {
    return std::make_unique<optim::SGDParamState>();
  }
  if (dynamic_cast<const optim::Adagrad*>(&optimizer) != nullptr) {
    return std::make_unique<optim::AdagradParamState>();
  }
  if (dynamic_cast<const optim::RMSprop*>(&optimizer) != nullptr) {
    return std::make_unique<optim::RMSpropParamState>();
  }
  if (dynamic_cast<const Muon*>(&optimizer) != nullptr) return std::make_unique<MuonParamState>();
  refuse(where, "set those of others by hand, in Optimizer::state()");
}

}  // namespace intarsia
