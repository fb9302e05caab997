"""What a tensor is and who holds what of it, for people to look at."""

from __future__ import annotations

from torch import Tensor

from . import _C


class Shown(str):
    """What `show` says. A notebook draws it; `picture` gives the drawing: as "text", "svg" or "html"."""

    type: _C.TensorType | None = None  # a plain tensor has none
    described: str = ""

    def picture(self, format: str = "svg") -> str:
        if self.type is None:
            raise ValueError(f"[show] {self.described} has no layout to draw; distribute it first")
        return self.type.picture(format)

    def _repr_html_(self) -> str | None:
        return None if self.type is None else self.type.picture("html")

    def __repr__(self) -> str:
        return str(self)


def show(tensor: Tensor) -> Shown:
    """`describe`, followed by this process's pieces. `show(x).picture()` draws which rank holds what. Communicates nothing."""
    shown = Shown(_C.show(tensor))
    shown.described = _C.describe(tensor)
    if _C.has_layout(tensor):
        mesh = _C.layout_of(tensor).mesh()
        shown.type = _C.TensorType.parse(shown.described.removesuffix(f" on {mesh}"), mesh)
    return shown
