"""Rules of users' own ops, and their proofs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import _C

Rows = str | Sequence[str] | Callable[[_C.Question], Sequence[str]]
Sizes = Callable[[_C.Question], Sequence[Sequence[int]] | None]

_in_force: set[Rule] = set()


class Rule:
    """A rule that add_rule() has added. It is in force until remove(), or the end of its `with` block."""

    def __init__(self, name: str, handle: _C.RuleHandle) -> None:
        self.name = name
        self._handle = handle
        _in_force.add(self)

    def remove(self) -> None:
        """Takes the rule away: the op is again what it was before. The second time does nothing."""
        if self in _in_force:
            _in_force.remove(self)
            self._handle.remove()

    def __enter__(self) -> Rule:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"<Rule of {self.name}{'' if self in _in_force else ', removed'}>"


def add_rule(
    name: str,
    rows: Rows,
    sizes: Sizes | None = None,
    *,
    fixed: Sequence[str] = (),
    follows_strides: bool = False,
) -> Rule:
    """Adds the rule of an op, `mylib::op`. The op may have a rule already: the one that was added last is used.

    `rows`: the placements of operands and results along one axis of a mesh, such as `S(0),R -> S(0)`; that all may be
    replicated goes without saying. Instead of a list, a function that gives the rows for a call; or, as one text, index
    notation: `MK,KN -> MN` names the last dimensions of operands and results. Capitals are dimensions that can be
    sharded. It says the sizes of results, too (rule.h describes all of it). `sizes`: a function that gives the sizes of
    each result, or None where only the result can say them; without it they are those of the first tensor. `fixed`:
    float arguments on whose value rows or sizes depend. `follows_strides`: the result has the operands' order of strides
    in memory, as for pointwise ops. Every process must add the same rules, before it uses the op.
    """
    given = rows if callable(rows) or isinstance(rows, str) else list(rows)
    return Rule(name, _C.add_rule(name, given, sizes, list(fixed), follows_strides))


def _options(given: dict[str, object]) -> _C.ProofOptions:
    options = _C.ProofOptions()
    for name, value in given.items():
        field = "samples" if name == "limit" else name
        if name == "samples" or not hasattr(options, field):
            raise TypeError(f"[prove] there is no option '{name}'")
        setattr(options, field, value)
    return options


def prove(op: str, samples: Sequence[str] | None = None, **options) -> _C.Proof:
    """Runs the rule of an op on many ranks and layouts, in this process, and compares with the op on full tensors.

    `samples`: calls in text form, such as `mylib::op(f64[6, 4], f64[4], scale=2.0)`, or the arguments alone;
    most ops of ATen have some. Options: `ranks` (sizes of one axis), `combinations`, `sampled` (how many are
    tried), `backward`, `variants` (in place and out=), `missing` (look for rows that the rule could have),
    `limit` (at most so many samples), `counter_examples` (the most that are looked for), `seed`.
    """
    chosen = _options(options)
    if samples is None:
        return _C.prove(op, chosen)
    texts = [op + text if text.startswith("(") else text for text in samples]
    wanted = (op if "::" in op else f"aten::{op}").split(".")[0]
    proof = _C.prove_samples(texts, chosen)
    if proof.op != wanted:
        raise ValueError(f"[prove] the samples are of {proof.op}, not of {op}")
    return proof


def prove_case(call: str, **options) -> str:
    """Runs one counter-example again: how it differs, or an empty text.

    `call` is that of a CounterExample: `aten::mm(f64[2, 1], f64[1, 2]) with S(0); R on [a=2]`.
    """
    return _C.prove_case(call, _options(options))
