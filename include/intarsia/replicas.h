// Replicas: whether ranks that should hold the same values do, for all of a model at once.
#pragma once

#include "intarsia/build.h"

namespace intarsia {

/// Checks tensors by name, such as parameters and the states of their optimizer, as
/// `assert_replicas` of tensor.h checks one: ranks along axes on which a tensor is R hold the same.
/// A WorldError names the tensor, the rank that differs from most others, and the first element.
/// Sends 16 bytes for each rank, mesh and set of such axes, and more only where something differs.
/// Of a model: `assert_replicas(named_tensors(model->named_parameters()))`.
/// COLLECTIVE: all ranks of the meshes, with the same names.
void assert_replicas(const NamedTensors& tensors);

}  // namespace intarsia
