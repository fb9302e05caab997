"""torch.compile and distributed tensors: a graph break with a hint.

All of torch's tracing makes fake tensors from real ones in one function. It has an exception for tensors
that it cannot fake, which Dynamo takes as a graph break: the code runs as if it were not compiled, or is
an error under fullgraph=True. Without this, Dynamo stops with an internal error about missing storage.
"""

from __future__ import annotations

import functools

from torch._subclasses.fake_tensor import FakeTensorConverter, UnsupportedFakeTensorException

from . import _C

HINT = (
    "torch.compile cannot trace Intarsia's distributed tensors, here {what}; leave such code uncompiled, or "
    "compile the body of a local_region, which sees plain tensors"
)


def install() -> None:
    plain = FakeTensorConverter.from_real_tensor
    if hasattr(plain, "_intarsia"):
        return

    @functools.wraps(plain)
    def from_real_tensor(self, fake_mode, t, *args, **kwargs):
        if _C.has_layout(t):
            raise UnsupportedFakeTensorException(HINT.format(what=_C.describe(t)))
        return plain(self, fake_mode, t, *args, **kwargs)

    from_real_tensor._intarsia = True
    FakeTensorConverter.from_real_tensor = from_real_tensor
