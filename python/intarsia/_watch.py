"""Watching the collectives of programs that use torch.distributed: DDP, FSDP2, DTensor, or calls by hand."""

from __future__ import annotations

import functools

import torch.distributed

from . import _C, _phase

if torch.distributed.is_available():
    from torch.distributed import distributed_c10d as c10d

BACKEND = "intarsia_gloo"
_on = False


def watch() -> None:
    """From now on the guard compares the collectives that ranks make over torch.distributed on the CPU: see docs/guard.md.

    Groups that exist are watched from here on, those that are made later from the start. Call it on all ranks, best before
    init_process_group; once is enough. `init_process_group("cpu:intarsia_gloo")` does it too, and for a program as it stands
    `python -m intarsia run -- torchrun train.py`.
    """
    if _on:
        return
    if not torch.distributed.is_available():
        raise NotImplementedError("[watch] this torch was built without torch.distributed")
    _watch_new_groups()
    if c10d.is_initialized():
        default = c10d._get_default_group()
        _watch_group(default, [])
        for group in c10d._world.pg_map:
            if group is not default:
                _watch_group(group, c10d.get_process_group_ranks(group))


def _watch_new_groups() -> None:
    global _on
    _on = True
    _phase.install()


def _make_gloo(store, rank, size, timeout):
    """The backend of the name intarsia_gloo."""
    _watch_new_groups()
    return c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)


def install() -> None:
    """Makes the name of our backend known, and stands by where groups are made."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return
    c10d.Backend.register_backend(BACKEND, _make_gloo, devices=["cpu"])
    make = c10d._new_process_group_helper

    @functools.wraps(make)
    def make_and_watch(group_size, group_rank, global_ranks_in_group, *args, **kwargs):
        made = make(group_size, group_rank, global_ranks_in_group, *args, **kwargs)
        if _on and made[0] is not c10d.GroupMember.NON_GROUP_MEMBER:
            _watch_group(made[0], list(global_ranks_in_group))
        return made

    c10d._new_process_group_helper = make_and_watch


def _watch_group(group, ranks: list[int]) -> None:
    """`ranks`: empty for the default group, from which others are counted."""
    name = "default" if not ranks else group.group_desc
    _C.watch(group.group_name, name if name and name != "undefined" else group.group_name, ranks)


def describe_job(job: int | str | None = None) -> str:
    """What all ranks of a job do, a line for each: its last call, phase, line, error; and groups in which some ranks are further than others.

    `job`: the process of one of its ranks on this host; the folder that INTARSIA_GUARD_DIR named, also when the job has ended; or
    nothing, for all jobs of this user. Jobs are not disturbed. `python -m intarsia watch --attach` prints it.
    """
    return _C.describe_job(job)
