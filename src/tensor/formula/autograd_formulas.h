// Formulas of ATen that write into a plain tensor or read memory, in a form that stays distributed;
// and those of autograd that send less when they know the layout.
#pragma once

namespace torch {
class Library;
}

namespace intarsia {

/// Registers them on the autograd key of distributed tensors. Called once.
void register_formulas();
/// Those for a sharded vocabulary.
void register_vocabulary(torch::Library& library);

}  // namespace intarsia
