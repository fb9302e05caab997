"""Distributed tensors for PyTorch, over the C++ library of the same name. See docs/python.md."""

import torch  # loads libtorch, which the extension needs

from . import _built, _torch_version

_torch_version.check(torch, _built)  # before the extension, whose symbols another libtorch does not have

from . import _C, _compile, _patches, _watch
from ._C import (
    DType,
    AttentionBlock,
    AttentionMask,
    Boxes,
    CheckpointContents,
    Communication,
    CounterExample,
    FileError,
    Launcher,
    Layout,
    MemoryMeter,
    Mesh,
    MissingRow,
    ModuleScope,
    MovingTensor,
    Placement,
    PlainTensors,
    Plan,
    Prediction,
    Proof,
    Question,
    Range,
    Reduction,
    Rendezvous,
    SequenceOrder,
    Step,
    StepCosts,
    StepKind,
    StepTime,
    StridedMeans,
    TensorType,
    Topology,
    Traffic,
    World,
    WorldError,
    attention_work,
    describe,
    has_layout,
    layout_of,
    lengths_along,
    lockstep_world,
    order_of_strided,
    in_order,
    in_positions,
    next_tokens,
    pack,
    packed,
    packed_labels,
    positions_in_order,
    Packing,
    provable_ops,
    read_rendezvous,
    relabelled,
    shard_lengths,
    traffic,
    traffic_between,
    world_of,
)
from ._checkpoint import (
    LoadedCheckpoint,
    checkpoint_steps,
    load_checkpoint,
    load_hugging_face,
    read_checkpoint,
    save_checkpoint,
)
from ._checkpoint_manager import CheckpointManager
from ._communication import (
    Budget,
    CommunicationScope,
    bill,
    cache_counters,
    check_plain_tensors,
    clear_bill,
    clear_cache,
    communication,
    plain_tensors,
    set_cache_limit,
    set_communication,
    set_plain_tensors,
)
from ._context import AttentionCost, ScanLayer, attention, attention_costs, attention_scope, linear_recurrence, mask_tensor, scan
from ._context_parallel import ContextParallel, context_parallel
from ._dtensor import from_dtensor, to_dtensor
from ._equiv import EquivReference, EquivReport, equiv, replay
from ._hugging_face import register_hugging_face_attention
from ._fully_shard import FullyShard, fully_shard
from ._optim import (
    Muon,
    balanced_owners,
    check_optimizer,
    clip_grad_norm_,
    get_grad_norm,
    orthogonalize,
    total_norm,
)
from ._parallelize import parallelize
from ._phase import find_straggler, phase, prometheus, step_times
from ._predict import explain_step, predict, simulate
from ._prove import Rule, add_rule, prove, prove_case
from ._replicas import assert_replicas, watch_replicas
from ._replicate import Replica, from_first, replicate
from ._show import Shown, show
from ._state_dict import (
    full_optimizer_state_dict,
    full_state_dict,
    load_full_optimizer_state_dict,
    load_full_state_dict,
)
from ._tensor import (
    arange,
    boxes,
    distribute,
    empty,
    explain,
    from_local,
    from_locals,
    full,
    full_of,
    local,
    local_region,
    local_shape,
    locals,
    make_plan,
    ones,
    rand,
    randint,
    randn,
    randperm,
    redistribute,
    redistribute_between,
    redistribute_together,
    start_redistribute,
    to_layout,
    zeros,
)
from ._tensor_parallel import (
    ModuleStyle,
    TensorParallelPlan,
    column,
    gathered_linears,
    llama_plan,
    placed,
    placed_input,
    placed_linear,
    placed_linears,
    placed_output,
    plan_layouts,
    prepare_input,
    prepare_output,
    row,
    scattered_linear,
    sequence,
    vocabulary,
    wanted_input,
    wanted_output,
)
from ._trace import StepTimes, Trace, trace
from ._watch import describe_job, watch
from ._world import close, connect, init, lockstep, mesh, world

_patches.install()
_compile.install()
_watch.install()

__all__ = [name for name in dir() if not name.startswith("_") and name != "torch"]
