// All of Intarsia.
#pragma once

#include "intarsia/between.h"           // IWYU pragma: export
#include "intarsia/boxes.h"             // IWYU pragma: export
#include "intarsia/build.h"             // IWYU pragma: export
#include "intarsia/collectives.h"       // IWYU pragma: export
#include "intarsia/communication.h"     // IWYU pragma: export
#include "intarsia/error.h"             // IWYU pragma: export
#include "intarsia/fully_shard.h"       // IWYU pragma: export
#include "intarsia/in_process.h"        // IWYU pragma: export
#include "intarsia/layout.h"            // IWYU pragma: export
#include "intarsia/ledger.h"            // IWYU pragma: export
#include "intarsia/lockstep.h"          // IWYU pragma: export
#include "intarsia/memory.h"            // IWYU pragma: export
#include "intarsia/mesh.h"              // IWYU pragma: export
#include "intarsia/optim.h"             // IWYU pragma: export
#include "intarsia/overlap.h"           // IWYU pragma: export
#include "intarsia/pattern.h"           // IWYU pragma: export
#include "intarsia/placement.h"         // IWYU pragma: export
#include "intarsia/plan.h"              // IWYU pragma: export
#include "intarsia/predict.h"           // IWYU pragma: export
#include "intarsia/prove.h"             // IWYU pragma: export
#include "intarsia/redistribute.h"      // IWYU pragma: export
#include "intarsia/rendezvous.h"        // IWYU pragma: export
#include "intarsia/replicate.h"         // IWYU pragma: export
#include "intarsia/rule.h"              // IWYU pragma: export
#include "intarsia/simulate.h"          // IWYU pragma: export
#include "intarsia/state_dict.h"        // IWYU pragma: export
#include "intarsia/symmetric_memory.h"  // IWYU pragma: export
#include "intarsia/tensor.h"            // IWYU pragma: export
#include "intarsia/tensor_parallel.h"   // IWYU pragma: export
#include "intarsia/tensor_type.h"       // IWYU pragma: export
#include "intarsia/topology.h"          // IWYU pragma: export
#include "intarsia/view.h"              // IWYU pragma: export
#include "intarsia/waiting.h"           // IWYU pragma: export
#include "intarsia/watch.h"             // IWYU pragma: export
#include "intarsia/world.h"             // IWYU pragma: export
