"""Bugs of distributed tensors that were seen elsewhere, each as a small program with a right answer.

A case is a function of a side. A side says how tensors are made and what is watched: `Plain` below is one rank and
gives the right answer; test_museum.py has Intarsia, and bench/museum/dtensor.py PyTorch's DTensor. The docstring of a
case says the bug. What it returns is compared: values, sizes and dtypes, gradients among them.

Layouts have the text form of Intarsia, on axes a and b. `s.rows` is 12, which the ranks divide, and then 5.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

EVEN, UNEVEN = 12, 5
MESHES = {1: {2: (2,), 3: (3,), 4: (4,)}, 2: {2: (2, 1), 3: (1, 3), 4: (2, 2), 6: (3, 2)}}
ORDERED = "S(0),S(0) | 0:b>a"  # axis b shards first, then a


@dataclasses.dataclass
class Case:
    name: str
    bug: str
    source: str
    body: Callable
    axes: int = 1
    uneven: bool = True  # also with rows that the ranks do not divide
    exact: bool = False  # compared bit by bit
    refused: str = ""  # the right answer is an error with this text
    unsaid: str = ""  # and without this one, which would mislead
    processes: bool = False  # the point needs a process for each rank
    section: str = ""

    def __post_init__(self):
        self.section = _section

    def sizes(self):
        return (EVEN, UNEVEN) if self.uneven else (EVEN,)

    def check(self, got, wanted):
        """Compares what a side gave with what one rank gives."""
        assert len(got) == len(wanted), f"{len(got)} results, not {len(wanted)}"
        close = {"rtol": 0, "atol": 0} if self.exact else {"rtol": 1e-9, "atol": 1e-11}
        for a, b in zip(got, wanted):
            torch.testing.assert_close(a, b, equal_nan=True, **close)


CASES: dict[str, Case] = {}
_section = ""


def section(title):
    """The heading of the cases that follow."""
    global _section
    _section = title


def case(source, **options):
    def decorate(body):
        name = body.__name__
        assert name not in CASES, name
        CASES[name] = Case(name, body.__doc__.strip().rstrip("."), source, body, **options)
        return body

    return decorate


def add(name, bug, source, body, **options):
    """The same for one of several cases that differ in an op."""
    assert name not in CASES, name
    CASES[name] = Case(name, bug, source, body, **options)


def intarsia_answers(case):
    """What test_museum.py checks, in words."""
    if case.refused:
        return f"refused: `...{case.refused}...`"
    side = Plain(4, case.axes, EVEN)
    results(case, side)
    words = {"announced": "sends only what it reduces, or is refused in explicit mode; the bill has it", "": "nothing is sent"}
    return "; ".join(["right"] + [words.get(bill, f"sends {bill}") for bill in dict.fromkeys(side.bills)])


def results(case, side):
    """What a case gives on a side, as full plain tensors."""
    given = case.body(side)
    given = given if isinstance(given, (tuple, list)) else (given,)
    return [side.full(t.detach()) if isinstance(t, torch.Tensor) else torch.tensor(t) for t in given]


class Plain:
    """One rank, with plain tensors: what is right."""

    def __init__(self, ranks, axes, rows):
        self.ranks, self.rows, self.mesh = ranks, rows, MESHES[axes][ranks]
        self.bills = []

    def put(self, full, layout):
        """The tensor in a layout."""
        return full.clone()

    def replicated(self, tensor):
        """The tensor, the same on all ranks."""
        return self.put(tensor, ",".join("R" for _ in self.mesh))

    def put_b_first(self, full):
        """Axis b shards dimension 0, and then a, in the way that users would write."""
        return full.clone()

    def parts(self, pieces, layout, shape=None):
        """A tensor of one piece for each rank."""
        if layout.startswith("S"):
            return torch.cat(pieces, int(layout[2]))
        reduce = {"P(sum)": torch.sum, "P(avg)": torch.mean, "P(max)": torch.amax, "P(min)": torch.amin}[layout]
        return reduce(torch.stack(pieces), 0).to(pieces[0].dtype)

    def full(self, tensor):
        return tensor

    def move(self, tensor, layout):
        return tensor

    def claimed(self, tensor):
        """Of a tensor whose values are their indices: those that a checkpoint would note for each rank's piece."""
        return tensor.clone()

    def held(self, tensor):
        """And those of the pieces."""
        return tensor.clone()

    def by_hand(self, tensor, piecewise, layout, on_one_rank, grad=None):
        """Takes pieces out, applies `piecewise(piece, rank)`, and puts them back; on one rank `on_one_rank(tensor)`."""
        return on_one_rank(tensor)

    def region(self, body, inputs, in_, out, on_one_rank, grads=(), shapes=()):
        """Runs `body` on the pieces of each rank; on one rank `on_one_rank`."""
        return on_one_rank(*inputs)

    def rand(self, size, layout):
        return torch.rand(size, dtype=torch.float64)

    def seed(self, by_rank=False):
        torch.manual_seed(1)

    def by_rank(self, make):
        """A plain tensor that differs between ranks."""
        return make(0)

    def as_others_have_it(self, tensor):
        """A replicated tensor, of which each part comes from another rank."""
        return tensor

    def same_layout(self, a, b):
        return True

    def check_replicas(self, tensor):
        pass

    def check_plain(self):
        pass

    def cached(self):
        """How many decisions are cached."""
        return 0

    def on_first_two(self, program):
        """What `program(put)` gives on the first two ranks; the others have no part in it."""
        return program(self.put)

    def flatten_mesh(self):
        pass

    @contextlib.contextmanager
    def sends(self, bill):
        """What is sent in here is this: "1 P->R", "" for nothing."""
        self.bills.append(bill)
        yield

    @contextlib.contextmanager
    def explicit(self):
        """Moves that no code named are errors in here."""
        yield

    def announced(self, op):
        """An op that may send something, and then is an error where only named moves are allowed."""
        self.bills.append("announced")


def values(*sizes, seed=0):
    return torch.randn(sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def counted(*sizes):
    return torch.arange(float(torch.Size(sizes).numel()), dtype=torch.float64).reshape(sizes)


def leaf(tensor):
    return tensor.requires_grad_()


def with_grads(s, y, *leaves):
    """y, and the gradients of the leaves for a loss that weighs all of y differently."""
    (y * s.replicated(values(*y.shape, seed=7))).sum().backward()
    return (y, *(t.grad for t in leaves))


def partial_tensor(s, *sizes, layout="P(sum)"):
    """A tensor with another partial value on each rank."""
    return s.parts([values(*sizes, seed=20 + rank) for rank in range(s.ranks)], layout)


FOUND = "found in 2.13"
BESIDE = "beside one that was found"  # no report of its own: a control, or what the same program may also meet


section("Rules that give wrong values")


def scan(op, s):
    x = leaf(s.put(values(3, s.rows).abs() + 0.5, "S(1)"))
    return with_grads(s, op(x, -1), x)


for _name, _op in {"cumsum": torch.cumsum, "cumprod": torch.cumprod, "logcumsumexp": torch.logcumsumexp}.items():
    _bug = f"`{_name}(-1)` along the sharded dimension scans each piece alone"
    add(f"{_name}_with_negative_dim", _bug, FOUND, functools.partial(scan, _op))


def cross_entropy(s, target, **options):
    x = leaf(s.put(values(s.rows, 5), "S(0)"))
    loss = F.cross_entropy(x, s.put(target, "S(0)"), **options)
    loss.backward()
    return loss, x.grad


@case(FOUND)
def cross_entropy_ignores_some(s):
    """The mean over targets that are not ignored is taken as the average of the pieces' means"""
    target = torch.arange(s.rows) % 5
    target[1:3] = -100
    return cross_entropy(s, target)


@case(FOUND)
def cross_entropy_ignores_all_of_a_piece(s):
    """A rank whose targets are all ignored makes the loss NaN"""
    target = torch.arange(s.rows) % 5
    target[: -(-s.rows // s.ranks)] = -100
    return cross_entropy(s, target)


@case(FOUND)
def cross_entropy_with_class_weights(s):
    """A weighted mean is taken as the average of the pieces' weighted means"""
    return cross_entropy(s, torch.arange(s.rows) % 5, weight=s.replicated(torch.arange(1.0, 6, dtype=torch.float64)))


@case(FOUND)
def cross_entropy_mean(s):
    """The mean loss of a batch that the ranks do not divide is an error"""
    return cross_entropy(s, torch.arange(s.rows) % 5)


@case(FOUND)
def gather_with_fewer_rows_in_the_index(s):
    """Rows of the index are matched with rows of a piece, not of the full tensor"""
    x = leaf(s.put(values(2 * s.rows, 4), "S(0)"))
    index = torch.arange(s.rows * 3).reshape(s.rows, 3) % 4
    return with_grads(s, torch.gather(x, 1, s.put(index, "S(0)")), x)


@case(FOUND)
def scatter_add_with_more_rows_in_the_source(s):
    """Rows of the source are matched with rows of a piece, not of the full tensor"""
    x, source = leaf(s.put(values(s.rows, 4), "S(0)")), s.put(values(2 * s.rows, 3, seed=1), "S(0)")
    index = s.put(torch.arange(s.rows * 3).reshape(s.rows, 3) % 4, "S(0)")
    return with_grads(s, torch.scatter_add(x, 1, index, source), x)


@case(FOUND)
def narrow_backward_with_negative_dim(s):
    """The gradient of `narrow(-1)` is wrong where it arrives sharded along that dimension"""
    x = leaf(s.put(values(3, 2 * s.rows), "S(1)"))
    y = torch.narrow(x, -1, 0, s.rows)
    y.backward(s.put(values(3, s.rows, seed=1), "S(1)"))
    return y, x.grad


@case(FOUND, uneven=False)
def fill_of_a_partial(s):
    """`fill_` writes the value into every partial value of a sum"""
    return partial_tensor(s, 3).fill_(1.0)


@case(FOUND)
def cosine_embedding_loss_of_vectors(s):
    """ATen fills a tensor like a partial one, and the value counts once for each rank"""
    x, y = leaf(s.put(values(s.rows), "S(0)")), leaf(s.put(values(s.rows, seed=1), "S(0)"))
    loss = F.cosine_embedding_loss(x, y, s.replicated(torch.tensor(1.0, dtype=torch.float64)))
    loss.backward()
    return loss, x.grad, y.grad


@case(FOUND)
def convolution_with_a_sharded_weight(s):
    """The result is called replicated, and each rank has its own channels"""
    x, w = leaf(s.replicated(values(2, 3, 4, 4))), leaf(s.put(values(s.rows, 3, 3, 3, seed=1), "S(0)"))
    return with_grads(s, F.conv2d(x, w, padding=1), x, w)


def convolution(dim, s):
    sizes = [2, 3, 4, 4]
    sizes[dim] = s.rows
    x = leaf(s.put(values(*sizes), f"S({dim})"))
    w = leaf(s.replicated(values(4, sizes[1], 3, 3, seed=1)))
    return with_grads(s, F.conv2d(x, w, padding=1), x, w)


for _name, _dim in {"channels": 1, "height": 2, "width": 3}.items():
    _bug = f"An input that is sharded along its {_name} is convolved piece by piece"
    add(f"convolution_with_sharded_{_name}", _bug, FOUND, functools.partial(convolution, _dim))


@case(FOUND, uneven=False)
def convolution_of_a_partial(s):
    """A partial input is never reduced"""
    x, w = partial_tensor(s, 2, 3, 4, 4), leaf(s.replicated(values(4, 3, 3, 3, seed=1)))
    return with_grads(s, F.conv2d(x, w, s.replicated(values(4, seed=2)), padding=1), w)


@case(FOUND, uneven=False)
def largest_magnitude_of_a_partial_maximum(s):
    """The infinity norm of a partial value is not a partial value of the norm"""
    x = s.parts([torch.tensor([-9.0 * r, 1.0], dtype=torch.float64) for r in range(s.ranks)], "P(max)")
    return torch.linalg.vector_norm(x, float("inf"))


@case(FOUND, uneven=False)
def smallest_magnitude_of_a_partial_minimum(s):
    """The norm of order minus infinity of a partial value is not a partial value of the norm"""
    x = s.parts([torch.tensor([-5.0 * r, -7.0], dtype=torch.float64) for r in range(s.ranks)], "P(min)")
    return torch.linalg.vector_norm(x, float("-inf"))


@case(FOUND, uneven=False)
def sum_of_powers_of_a_partial(s):
    """A sum of squares of partial values is taken for a partial value of the sum of squares"""
    return torch.ops.aten.linalg__powsum(partial_tensor(s, 4), 2.0)


@case(FOUND, uneven=False)
def sums_of_powers_of_partials(s):
    """The same for a list of tensors"""
    return torch.ops.aten._foreach_powsum([partial_tensor(s, 4), partial_tensor(s, 2)], 2.0)


@case(FOUND, uneven=False)
def any_of_a_partial_that_cancels(s):
    """Partial values that are not zero cancel, and `any` of them does not"""
    one = torch.tensor([1.0, 0.0], dtype=torch.float64)
    return torch.any(s.parts([one, -one] + [0 * one] * (s.ranks - 2), "P(sum)"))


@case(FOUND, uneven=False)
def bits_of_a_partial(s):
    """`view(dtype)` of partial values is taken for partial values of the bits"""
    return partial_tensor(s, 4).view(torch.int64)


@case(FOUND, uneven=False)
def threshold_of_a_partial_maximum(s):
    """A threshold whose value is above its bound is not monotone"""
    x = s.parts([torch.tensor([-1.0 - r, 2.0 * r], dtype=torch.float64) for r in range(s.ranks)], "P(max)")
    return F.threshold(x, 0.5, 9.0)


@case(FOUND, uneven=False)
def negative_of_a_partial_maximum_of_bytes(s):
    """Minus turns a maximum into a minimum, but not of unsigned numbers"""
    return -s.parts([torch.tensor([0, 5 * r, 3], dtype=torch.uint8) for r in range(s.ranks)], "P(max)")


@case(FOUND, uneven=False)
def item_of_a_partial(s):
    """`item()` gives the partial value of this rank"""
    return s.parts([torch.tensor(1.0 + r, dtype=torch.float64) for r in range(s.ranks)], "P(sum)").item()


@case(FOUND, uneven=False)
def truth_of_a_partial(s):
    """`bool()` asks the partial value of this rank"""
    return bool(s.parts([torch.tensor(1.0), torch.tensor(-1.0)] + [torch.tensor(0.0)] * (s.ranks - 2), "P(sum)"))


@case(FOUND, uneven=False)
def fourier_of_a_partial_maximum(s):
    """A Fourier transform of partial values of a maximum is taken for partial values of a maximum"""
    return torch.view_as_real(torch.fft.rfft(partial_tensor(s, 6, layout="P(max)")))


def order_kept(op, s):
    x = s.put(counted(s.rows, 2), ORDERED)
    with s.sends(""):
        return op(x)


for _name, _op in {
    "detach": lambda x: x.detach(),
    "view": lambda x: x.view(x.shape[0], 1, 2),
    "t": lambda x: x.t(),
    "transpose": lambda x: x.transpose(0, 1),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "slice": lambda x: x[:, :1],
    "sum": lambda x: x.sum(1),
    "cat": lambda x: torch.cat([x, x], 1),
    "mul": lambda x: x * 2,
    "add": lambda x: x + x,
    "write": lambda x: x.mul_(2),
}.items():
    _what = {"mul": "gathers without need", "add": "gathers without need", "write": "in place is lost"}.get(_name)
    _what = _what or "puts the pieces in the default order"
    _bug = f"Two axes shard one dimension in an order that is not the default, and `{_name}` {_what}"
    add(f"order_of_axes_kept_by_{_name}", _bug, FOUND, functools.partial(order_kept, _op), axes=2)


@case(FOUND, axes=2)
def offsets_of_an_ordered_shard(s):
    """A checkpoint notes the offsets of the default order"""
    x = s.put(counted(s.rows), ORDERED)
    return s.claimed(x) - s.held(x)


@case(FOUND)
def offsets_of_a_strided_shard(s):
    """A checkpoint notes one box for a piece that is several"""
    x = s.put(counted(4 * s.rows), "SS(0,2)")
    return s.claimed(x) - s.held(x)


@case(FOUND, axes=2)
def random_numbers_of_two_axes_on_one_dim(s):
    """Ranks draw from streams that overlap with the next draw; on CPU there is an error instead"""
    s.seed()
    first, second = s.rand(4 * s.rows, "S(0),S(0)"), s.rand(4 * s.rows, "S(0),S(0)")
    return torch.cat([s.full(first), s.full(second)]).unique().numel()


@case("pytorch #168058")
def dropout_in_two_layouts(s):
    """The seed gives another mask in another layout, and on CPU the same mask to every piece"""
    ones, masks = torch.ones(s.rows, 8, dtype=torch.float64), []
    for layout in ("S(0)", "R"):
        s.seed()
        masks.append(s.full(F.dropout(s.put(ones, layout), 0.5)))
    return masks[0] - masks[1]


@case(FOUND, processes=True, uneven=False, refused="manual_seed")
def dropout_with_a_seed_of_each_rank(s):
    """Dropout of a replicated tensor differs between ranks whose seeds differ, and nothing says so"""
    s.seed(by_rank=True)
    y = F.dropout(s.put(torch.ones(20, dtype=torch.float64), "R"), 0.5)
    return s.full(y) - s.as_others_have_it(y)


section("Errors where there is an answer")


def some_outputs(op, s):
    x, y = leaf(s.put(values(6, s.rows), "S(1)")), leaf(s.replicated(values(6, 3)))
    with_grads(s, op(x)[1])
    with_grads(s, op(y)[0])
    return x.grad, y.grad


for _name, _op in {
    "chunk": lambda x: x.chunk(3),
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 3),
    "split": lambda x: x.split([1, 2, 3]),
    "unbind": lambda x: x.unbind(),
}.items():
    _bug = f"The backward of `{_name}` fails where an output has no gradient"
    add(f"{_name}_of_which_some_outputs_are_used", _bug, FOUND, functools.partial(some_outputs, _op))


@case(FOUND)
def group_norm_backward(s):
    """The backward of a group norm whose batch is sharded fails"""
    x = leaf(s.put(values(s.rows, 4, 3), "S(0)"))
    w, b = leaf(s.replicated(values(4, seed=1))), leaf(s.replicated(values(4, seed=2)))
    return with_grads(s, F.group_norm(x, 2, w, b), x, w, b)


def pooled(op, dims, s):
    x = leaf(s.put(values(s.rows, 2, *[4] * dims), "S(0)"))
    return with_grads(s, op(x), x)


for _name, _op, _dims in (
    ("avg_pool2d", lambda x: F.avg_pool2d(x, 2), 2),
    ("avg_pool3d", lambda x: F.avg_pool3d(x, 2), 3),
    ("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 2), 2),
    ("max_pool3d", lambda x: F.max_pool3d(x, 2), 3),
):
    _bug = f"The backward of `{_name}` has no rule, and is an error"
    add(f"{_name}_backward", _bug, FOUND, functools.partial(pooled, _op, _dims))


@case(FOUND)
def prelu_backward(s):
    """The backward of `prelu` has no rule, and is an error"""
    x, w = leaf(s.put(values(s.rows, 3), "S(0)")), leaf(s.replicated(values(3, seed=1)))
    return with_grads(s, F.prelu(x, w), x, w)


@case(FOUND)
def rms_norm_over_the_sharded_dim(s):
    """On CPU, ATen adds in place to a partial tensor, and that is an error"""
    x, w = leaf(s.put(values(3, s.rows), "S(1)")), leaf(s.put(values(s.rows, seed=1), "S(0)"))
    return with_grads(s, F.rms_norm(x, (s.rows,), w, 1e-6), x, w)


@case(FOUND)
def unbind_of_the_sharded_dim(s):
    """`unbind` of the sharded dimension is an error"""
    x = leaf(s.put(values(s.rows, 3), "S(0)"))
    return with_grads(s, x.unbind()[2], x)


@case(FOUND)
def unflatten_that_the_ranks_do_not_divide(s):
    """A view that splits the sharded dimension into sizes that the ranks do not divide is an error"""
    x = leaf(s.put(values(5 * s.rows, 2), "S(0)"))
    return with_grads(s, x.view(5, s.rows, 2), x)


@case(FOUND)
def two_embeddings_in_flight(s):
    """Two lookups in a table whose rows are sharded share one mask"""
    table = leaf(s.put(values(s.rows, 3), "S(0)"))
    first = F.embedding(s.replicated(torch.tensor([0, 1, 2, 3])), table)
    second = F.embedding(s.replicated(torch.tensor([4, 1, 4, 0])), table)
    return with_grads(s, first * second, table)


@case(FOUND, uneven=False)
def logsumexp_of_one_number(s):
    """`logsumexp` of a tensor without dimensions is an error"""
    x = leaf(s.replicated(torch.tensor(2.0, dtype=torch.float64)))
    return with_grads(s, torch.logsumexp(x, 0), x)


@case(FOUND)
def attention_with_sharded_heads(s):
    """Attention on CPU has no rule"""
    q, k, v = (leaf(s.put(values(2, s.rows, 6, 4, seed=i), "S(1)")) for i in range(3))
    with s.sends(""):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return with_grads(s, y, q, k, v)


@case(FOUND)
def embedding_bag_with_a_sharded_batch(s):
    """`embedding_bag` makes plain tensors inside and fails on the mix"""
    table = leaf(s.replicated(values(6, 3)))
    index = torch.arange(2 * s.rows).reshape(s.rows, 2) % 6
    return with_grads(s, F.embedding_bag(s.put(index, "S(0)"), table, mode="sum"), table)


@case("found in 2.13, with MKLDNN only")
def lstm_with_a_sharded_batch(s):
    """An LSTM makes plain tensors inside and fails on the mix"""
    x = leaf(s.put(values(4, s.rows, 3), "S(1)"))
    zero = torch.zeros(1, s.rows, 2, dtype=torch.float64)
    weights = [leaf(s.replicated(values(8, n, seed=n))) for n in (3, 2)]
    state = (s.put(zero, "S(1)"), s.put(zero, "S(1)"))
    return with_grads(s, torch.lstm(x, state, weights, False, 1, 0.0, True, False, False)[0], x, *weights)


@case(FOUND)
def searchsorted_with_a_sharded_sorter(s):
    """A tensor among the keyword arguments is never moved"""
    x = values(s.rows)
    return torch.searchsorted(s.replicated(x), s.put(values(4, seed=1), "R"), sorter=s.put(x.argsort(), "S(0)"))


@case(BESIDE)
def out_in_another_layout(s):
    """The tensor given as `out=` has another layout than the operands"""
    out = s.put(torch.zeros(s.rows, 4, dtype=torch.float64), "S(1)")
    torch.add(s.put(values(s.rows, 4), "S(0)"), s.put(values(s.rows, 4, seed=1), "S(0)"), out=out)
    return out


@case(FOUND, processes=True, uneven=False)
def equal_on_some_of_the_ranks(s):
    """`torch.equal` on some ranks waits for all of the world"""
    x = values(6)
    return s.on_first_two(lambda put: torch.equal(put(x, "S(0)"), put(x, "S(0)")))


@case(FOUND, uneven=False, refused="put all of them on one mesh")
def tensors_on_two_meshes(s):
    """An op on tensors of two meshes"""
    return s.put(values(12), "S(0)") + s.put(values(12), f"[y=1,z={s.ranks}] R,S(0)")


@case(FOUND, uneven=False, refused="full()")
def redistribute_to_another_mesh(s):
    """A move to another mesh"""
    return s.move(s.put(values(12), "S(0)"), f"[y=1,z={s.ranks}] R,S(0)")


@case(FOUND)
def as_strided_of_a_sharded_tensor(s):
    """`as_strided` is an error"""
    x = leaf(s.put(values(s.rows, 4), "S(0)"))
    return with_grads(s, torch.as_strided(x, (3, 2), (4, 2), 1), x)


@case(FOUND)
def distribute_a_result(s):
    """Only leaves can be distributed, so gradients end there"""
    w = leaf(values(s.rows, 3))
    return with_grads(s, s.put(w * 2, "S(0)"), w)


section("Communication that is not needed, or not told")


@case(FOUND, uneven=False)
def clone_of_a_partial(s):
    """`clone` reduces"""
    x = partial_tensor(s, 4)
    with s.sends(""):
        return x.clone()


def optimizer_step(make, s):
    w, x = nn.Parameter(s.replicated(values(4, 4))), s.put(values(s.rows, 4, seed=1), "S(0)")
    optimizer = make([w])
    with s.sends("1 P->R"):
        (x @ w).pow(2).sum().backward()
        optimizer.step()
    return w, w.grad


for _name, _make in {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=False),
    "foreach_adamw": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
    "fused_adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
}.items():
    _bug = "A gradient that is a partial sum is reduced at each use by the optimizer"
    _source = FOUND if _name.endswith("adamw") and _name != "fused_adamw" else BESIDE
    add(f"one_reduction_for_a_step_of_{_name}", _bug, _source, functools.partial(optimizer_step, _make))


@case(FOUND)
def gradient_is_laid_out_as_its_leaf(s):
    """The gradient of a sharded parameter comes in any layout"""
    w, x = leaf(s.put(values(4, s.rows), "S(1)")), s.put(values(s.rows, 4, seed=1), "S(0)")
    (x @ w).mean().backward()
    return w.grad, s.same_layout(w.grad, w)


@case(FOUND, uneven=False, exact=True)
def partial_plus_replicated(s):
    """The replicated summand is divided by the number of ranks, which rounds"""
    x = s.put(torch.zeros(2, 12), "S(1)") @ s.put(torch.ones(12, 3), "S(0)")
    y = s.replicated(torch.tensor([0.1, 1e-45, 16777217 / 3]))
    with s.sends(""):
        return x + y, y + x, x - y


@case(FOUND, uneven=False, exact=True)
def partial_plus_replicated_of_the_same_size(s):
    """The same, where reducing the sum costs no more than making the other one partial"""
    x = s.put(torch.zeros(2, 12), "S(1)") @ s.put(torch.ones(12, 3), "S(0)")
    y = s.replicated(torch.tensor([[0.1, 1e-45, 16777217 / 3], [0.7, 1 / 3, 2.3]]))
    with s.sends("1 P->R"):
        return x + y, y + x, x - y


@case(FOUND, uneven=False, exact=True)
def partial_plus_replicated_integers(s):
    """The same for integers"""
    x = s.parts([torch.tensor([r, 5]) for r in range(s.ranks)], "P(sum)")
    return x + s.replicated(torch.tensor([7, 11]))


@case(FOUND, exact=True)
def bias_of_a_partial_product(s):
    """The bias of a product that is a partial sum is divided by the number of ranks"""
    x, w = s.put(torch.zeros(2, s.rows), "S(1)"), s.put(torch.ones(s.rows, 3), "S(0)")
    with s.sends(""):
        return torch.addmm(s.replicated(torch.tensor([0.1, 0.7, 16777217 / 3])), x, w)


@case("pytorch #178301", uneven=False)
def numbers_in_the_cache(s):
    """Each new value of a number in a call is a new entry of a cache without limit"""
    x = s.put(values(12), "S(0)")
    x * 0.5
    before = s.cached()
    for i in range(50):
        x = x * (1 + i / 100)
    return x, s.cached() - before


def hidden(op, layout, make, s):
    x = s.put(make(s.rows), layout)
    s.announced(lambda: op(x))
    return op(x)


def square_of(rows):
    return values(rows, rows)


def columns_of(rows):
    return values(4, rows)


for _name, (_op, _layout, _make) in {
    "layer_norm": (lambda x: F.layer_norm(x, (x.shape[1],)), "S(1)", columns_of),
    "softmax": (lambda x: torch.softmax(x, 1), "S(1)", columns_of),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), "S(1)", columns_of),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), "S(0)", lambda rows: values(rows, 3, 4)),
    "sort": (lambda x: x.sort(1), "S(1)", columns_of),
    "topk": (lambda x: x.topk(3, 1), "S(1)", columns_of),
    "cumsum": (lambda x: x.cumsum(1), "S(1)", columns_of),
    "median": (lambda x: x.median(), "S(1)", columns_of),
    "std": (lambda x: x.std(1), "S(1)", columns_of),
    "var": (lambda x: x.var(), "S(1)", columns_of),
    "logsumexp": (lambda x: x.logsumexp(1), "S(1)", columns_of),
    "tril": (lambda x: x.tril(), "S(0)", square_of),
    "triu": (lambda x: x.triu(1), "S(1)", square_of),
    "diag": (lambda x: x.diag(), "S(0)", square_of),
    "svdvals": (torch.linalg.svdvals, "S(0)", square_of),
    "qr": (lambda x: torch.linalg.qr(x), "S(1)", square_of),
    "roll": (lambda x: x.roll(1, 1), "S(1)", columns_of),
    "cat": (lambda x: torch.cat([x, x * 2], 1), "S(1)", columns_of),
    "split": (lambda x: x.split(3, 1), "S(1)", columns_of),
    "slice": (lambda x: x[:, 1:4], "S(1)", columns_of),
}.items():
    _bug = f"`{_name}` along the sharded dimension gathers, and only explicit mode tells"
    add(f"hidden_gather_of_{_name}", _bug, FOUND, functools.partial(hidden, _op, _layout, _make))


@case("pytorch #167106")
def batched_products_stay_local(s):
    """Products of batches that are sharded alike are gathered first"""
    q, k = leaf(s.put(values(2, s.rows, 3, 4), "S(1)")), leaf(s.put(values(2, s.rows, 4, 3, seed=1), "S(1)"))
    with s.sends(""):
        y = q @ k
    return with_grads(s, y, q, k)


@case("pytorch #166593, #168887", uneven=False, refused='redistribute(tensor, "S(0)")')
def explicit_mode_forward(s):
    """An op that needs another layout moves it in silence"""
    x, y = s.put(values(4, 12), "S(1)"), s.put(values(4, 12, seed=1), "S(0)")
    with s.explicit():
        return x * y


@case("pytorch #166593, #169452", uneven=False, refused='redistribute(tensor, "S(0)")')
def explicit_mode_backward(s):
    """Explicit mode sees the forward, and the backward moves in silence"""
    x, w = leaf(s.put(values(4, 12), "S(0)")), s.put(values(4, 12, seed=1), "S(0)")
    with s.explicit():
        (x * w).backward(s.put(values(4, 12, seed=2), "S(1)"))
    return x.grad


@case("openxla/xla #42481")
def scatter_add_backward_stays_local(s):
    """The backward of `scatter_add` with a sharded batch communicates"""
    x, source = leaf(s.put(values(s.rows, 4), "S(0)")), leaf(s.put(values(s.rows, 3, seed=1), "S(0)"))
    index = s.put(torch.arange(s.rows * 3).reshape(s.rows, 3) % 4, "S(0)")
    with s.sends(""):
        y = torch.scatter_add(x, 1, index, source)
        (y * y).sum().backward()
    return y, x.grad, source.grad


section("Where code on pieces meets distributed tensors")


def ranks_of(s):
    return sum(r + 1 for r in range(s.ranks))


def own_factor(piece, rank):
    return piece * (rank + 1)


@case("torchtitan #1805, #1878", uneven=False, refused="grad_layout")
def piece_of_a_replicated_tensor(s):
    """Each rank computes its own part from a replicated tensor, and the gradient is never summed"""
    x = leaf(s.replicated(values(4)))
    y = s.by_hand(x * 1, own_factor, "P(sum)", lambda t: t * ranks_of(s))
    y.pow(2).sum().backward()
    return y, x.grad


@case("torchtitan #2532", uneven=False)
def piece_of_a_replicated_tensor_with_its_gradient(s):
    """The same, where the code says what the gradient of the piece is"""
    x = leaf(s.replicated(values(4)))
    y = s.by_hand(x * 1, own_factor, "P(sum)", lambda t: t * ranks_of(s), grad="P(sum)")
    y.pow(2).sum().backward()
    return y, x.grad


def routed(s, grads):
    """Every rank weighs its experts by a router that all ranks share."""
    router, x = leaf(s.replicated(values(4, 3))), s.replicated(values(5, 4, seed=2))
    experts = s.put(values(12, 3, seed=1), "S(0)")

    def body(x, router, experts):
        return torch.sigmoid(x @ router) @ experts.t()

    y = s.region(body, [x, router, experts], ["R", "R", "S(0)"], "S(1)", body, grads=grads)
    y.pow(2).sum().backward()
    with torch.no_grad():
        router -= 0.1 * router.grad
    return y, router


@case("torchtitan #2387, #2416", uneven=False)
def router_weights_stay_equal(s):
    """Weights that ranks share drift apart, as each rank has only its part of the gradient"""
    y, router = routed(s, ["R", "P(sum)", None])
    s.check_replicas(router)
    return y, router


@case("torchtitan #4054", uneven=False, refused="grads")
def region_without_gradient_layouts(s):
    """The layout of a gradient is not given, and a wrong one is taken"""
    return routed(s, [])


@case("torchtitan #4054", uneven=False, refused="differs from rank 0")
def region_with_a_wrong_gradient_layout(s):
    """The layout of a gradient is given wrongly, and replicas differ from then on"""
    y, router = routed(s, ["R", "R", None])
    s.check_replicas(router)
    return y, router


@case("torchtitan #1373")
def key_that_all_heads_share(s):
    """A key that is shared by heads on several ranks gets the gradient of the own heads"""
    x, shared = s.replicated(values(2, 5, 4)), leaf(s.replicated(values(4, 2, seed=1)))
    heads = leaf(s.put(values(4, s.rows, 3, seed=2), "S(1)"))
    own = torch.einsum("btd,dhk->bthk", x, heads)
    key = torch.cat([own, (x @ shared).unsqueeze(2).expand(-1, -1, s.rows, -1)], -1)
    return with_grads(s, key, shared, heads)


@case("pytorch #160285")
def gradients_of_experts(s):
    """With tokens and experts on the same axis, gradients come out once for each rank"""
    tokens, experts = leaf(s.put(values(s.rows, 4), "S(0)")), leaf(s.put(values(4, 4, 3, seed=1), "S(0)"))
    loss = torch.einsum("td,edh->teh", tokens, experts).pow(2).mean()
    loss.backward()
    return loss, tokens.grad, experts.grad


def partial_and_back(s, grad):
    x, w = leaf(s.put(values(3, s.rows), "S(1)")), s.put(values(s.rows, 2, seed=1), "S(0)")
    y = s.by_hand(x @ w, lambda piece, rank: piece, "P(sum)", lambda t: t, grad=grad)
    return with_grads(s, y, x)


@case("pytorch #172932", refused="grad_layout")
def piece_of_a_partial_and_back(s):
    """Pieces of a partial tensor are taken out and put back, and the gradient is another"""
    return partial_and_back(s, None)


@case("pytorch #172932")
def piece_of_a_partial_and_back_with_its_gradient(s):
    """The same, where the code says what the gradient of the piece is"""
    return partial_and_back(s, "R")


@case("pytorch #172812")
def region_of_uneven_pieces(s):
    """A region whose pieces differ in size gives a tensor of the wrong size"""
    x = leaf(s.put(values(s.rows, 4), "S(0)"))
    y = s.region(lambda t: t * 2, [x], ["S(0)"], "S(0)", lambda t: t * 2, shapes=[(s.rows, 4)])
    return with_grads(s, y, x)


@case("pytorch #153354, torchtitan #875")
def plain_mask_beside_a_sharded_tensor(s):
    """A mask that is a plain tensor is an error"""
    x = leaf(s.put(values(s.rows, s.rows), "S(0)"))
    mask = torch.ones(s.rows, s.rows).tril() == 0
    return with_grads(s, x.masked_fill(mask, -1.0) + torch.arange(float(s.rows), dtype=torch.float64), x)


@case("torchtitan #875, NeMo-RL #1051")
def op_of_the_user(s):
    """A kernel of the user's own has no rule, and is an error"""
    x = s.put(values(s.rows, 3), "S(0)")
    return user_op(x, torch.ones(3, dtype=torch.float64))


@torch.library.custom_op("museum::center", mutates_args=())
def user_op(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(0)) * scale


@user_op.register_fake
def _(x, scale):
    return torch.empty_like(x)


@case("pytorch_geometric #10317, accelerate #3565")
def clip_gradients_of_plain_and_sharded_parameters(s):
    """The norm over gradients of plain and distributed parameters is an error"""
    plain, sharded = leaf(values(3)), leaf(s.put(values(s.rows, 3, seed=1), "S(0)"))
    ((sharded * plain).pow(2)).sum().backward()
    norm = nn.utils.clip_grad_norm_([plain, sharded], 0.5)
    return norm, plain.grad, sharded.grad


@case(BESIDE, processes=True, uneven=False, refused="differ")
def plain_tensor_that_differs_between_ranks(s):
    """A plain tensor is taken as replicated and is not the same on all ranks"""
    y = s.put(values(12), "S(0)") + s.by_rank(lambda rank: torch.full((12,), float(rank), dtype=torch.float64))
    s.check_plain()
    return y


@case(BESIDE)
def write_into_a_plain_tensor(s):
    """A distributed result is written into a plain tensor: all of it, on every rank"""
    out = torch.zeros(12, dtype=torch.float64)
    out.copy_(s.put(values(12), "S(0)"))
    return out


section("Partial values")


@case("pytorch #163193", uneven=False)
def partial_plus_a_number(s):
    """The number is added once for each rank"""
    x = partial_tensor(s, 4)
    return x + 1, 1 - x, x.clone().add_(1), x.clone().sub_(2)


def of_partial(op, s):
    return op(partial_tensor(s, 3, 4))


for _name, _op in {
    "norm": lambda x: x.norm(),
    "max": lambda x: x.max(),
    "min_along_a_dim": lambda x: x.min(1),
    "amax": lambda x: x.amax(0),
    "argmax": lambda x: x.argmax(1),
    "abs": lambda x: x.abs().sum(),
    "relu": lambda x: torch.relu(x),
    "square": lambda x: x * x,
}.items():
    _bug = f"`{_name.split('_')[0]}` of partial values of a sum is taken for partial values of the result"
    _source = BESIDE if _name in ("abs", "relu", "square") else "pytorch #159856, #165962"
    add(f"{_name}_of_a_partial", _bug, _source, functools.partial(of_partial, _op), uneven=False)


@case("pytorch #165962")
def clip_a_partial_gradient(s):
    """The norm of a gradient that is a partial sum is the norm of its partial values"""
    w, x = nn.Parameter(s.replicated(values(4, 4))), s.put(values(s.rows, 4, seed=1), "S(0)")
    (x @ w).pow(2).sum().backward()
    norm = nn.utils.clip_grad_norm_([w], 0.5)
    return norm, w.grad


section("Pieces that differ in size")


@case("pytorch #162692")
def mean_of_uneven_pieces(s):
    """The mean is the average of the pieces' means, NaN where a piece is empty"""
    x = leaf(s.put(values(s.rows, 3), "S(0)"))
    return (*with_grads(s, x.mean(), x), x.mean(0), s.put(values(1, 2), "S(0)").mean())


@case("pytorch #144109", uneven=False, refused="gives it (2,", unsaid="say the global sizes")
def pieces_of_any_size(s):
    """Pieces whose sizes are not those of the layout are joined into a wrong tensor"""
    pieces = [values(2, 2 + r, seed=r) for r in range(s.ranks)]
    return s.parts(pieces, "S(1)", shape=(2, sum(p.shape[1] for p in pieces)))


@case("pytorch #144109", uneven=False, refused="say the global sizes in `shape`")
def uneven_pieces_without_the_size_of_the_full_tensor(s):
    """Uneven pieces are taken for even ones, and the full tensor has a wrong size"""
    full = counted(5, 2)
    pieces = list(full.chunk(s.ranks))
    return s.parts(pieces + [full[:0]] * (s.ranks - len(pieces)), "S(0)")


@case("pytorch #103306")
def there_and_back(s):
    """Padding of uneven pieces stays in the gathered tensor"""
    x = s.replicated(values(s.rows, 3))
    there = s.move(x, "S(0)")
    return there, s.move(there, "R"), s.move(s.move(there, "S(1)"), "S(0)")


@case("pytorch #161368")
def offsets_of_uneven_pieces(s):
    """Offsets of uneven and empty pieces are wrong"""
    x = s.put(counted(s.rows), "S(0)")
    return s.claimed(x) - s.held(x)


@case("pytorch #194457", axes=2)
def gather_over_two_axes(s):
    """A gather over two axes at once loses a row, with no error"""
    s.flatten_mesh()
    return s.move(s.put(counted(s.rows, 3), "S(0),S(0)"), "R,R")


@case(BESIDE, uneven=False)
def fewer_rows_than_ranks(s):
    """Ranks without rows give errors, or values of their own"""
    x = leaf(s.put(values(1, 3), "S(0)"))
    return (*with_grads(s, torch.relu(x), x), x.sum(), x.amax(0), x.argmax(), x.std(1), x @ x.t())


section("The order of axes, and shards in blocks")


@case("pytorch #129206, #129229", axes=2)
def data_parallel_after_tensor_parallel(s):
    """A weight that is sharded for tensor parallelism, then for data parallelism, is gathered in a wrong order"""
    w = s.put_b_first(values(s.rows, 3))
    w -= 0.5 * w
    return w, s.move(w, "R,R"), s.move(w, "S(0),S(0)"), s.move(w, "S(1),S(0)")


@case("pytorch #150490, #168134")
def uneven_blocks(s):
    """Shards in blocks of uneven sizes leave gaps"""
    x = s.put(counted(s.rows, 2), "SS(0,2)")
    return x, x * 2, s.move(x, "R"), s.move(x, "S(0)")


section("Views of sharded dimensions")


@case("pytorch #179502", uneven=False)
def view_across_shards(s):
    """A view that splits what it flattens keeps the placement, and elements change places"""
    x, y = leaf(s.put(counted(12, 8), "S(1)")), s.put(counted(4, 12, 4), "S(1)")
    return (*with_grads(s, x.view(-1, 6), x), y.view(16, 12), y.reshape(6, -1))


@case("pytorch #172102, #165600")
def linear_of_a_sharded_sequence(s):
    """A linear layer on an input that is sharded along the sequence is an error"""
    x = leaf(s.put(values(2, s.rows, 4), "S(1)"))
    w, b = leaf(s.replicated(values(3, 4, seed=1))), leaf(s.replicated(values(3, seed=2)))
    with s.sends(""):
        y = F.linear(x, w, b)
    return with_grads(s, y, x, w, b)


@case("pytorch #166483, #149764")
def flatten_of_a_sharded_dim(s):
    """Flattening a sharded dimension into the one before it is an error, or wrong"""
    x = leaf(s.put(counted(2, s.rows, 3), "S(1)"))
    return (*with_grads(s, x.flatten(0, 1), x), x.flatten(), x.flatten(1))


@case("pytorch #161950")
def unflatten_of_a_sharded_dim(s):
    """Splitting a sharded dimension is an error, or wrong"""
    x = leaf(s.put(counted(2 * s.rows, 3), "S(0)"))
    return (*with_grads(s, x.unflatten(0, (2, s.rows)), x), x.unflatten(0, (s.rows, 2)))


@case("pytorch #186282", axes=2)
def two_axes_through_a_view(s):
    """A dimension that two axes shard is flattened and split again, and one axis lands on a wrong dimension"""
    x = leaf(s.put(counted(2, 4 * s.rows, 3), "S(1),S(1)"))
    flat = x.view(8 * s.rows, 3) * 2
    return with_grads(s, flat.view(2, 4 * s.rows, 3), x)


@case("jax #39309")
def reshape_with_a_dim_of_one(s):
    """A reshape drops a dimension of size one, and shards are lost with it"""
    x = leaf(s.put(counted(s.rows, 1, 3), "S(0)"))
    with s.sends(""):
        y = x.reshape(s.rows, 3).reshape(1, s.rows, 3)
    return with_grads(s, y, x)


@case("pytorch #147570")
def write_through_a_view(s):
    """A write to a view of uneven pieces goes to a copy, in silence"""
    w = s.put(values(s.rows, 4), "S(0)")
    w.view(-1).mul_(2)
    w.view(s.rows, 2, 2).add_(s.replicated(values(s.rows, 2, 2, seed=1)))
    w[1].fill_(7)
    return w


section("Programs of several ops")

PROGRAMS = "found by random programs"


@case(PROGRAMS, axes=2)
def writes_to_rows_of_a_partial_and_sharded_tensor(s):
    """A write to a row of a product that is partial on one axis and sharded on the other is undone by the next one"""
    x, w = s.put(values(s.rows, 4), "S(0),S(1)"), s.put(values(5, 4, seed=1), "R,S(1)")
    h = F.linear(x, w)
    h[0] = 0.0
    h[-1] = 0.0
    h[1] += 50.0
    return h.relu(), h.sum()


@case(PROGRAMS, uneven=False)
def attention_with_keys_expanded_over_heads(s):
    """Keys and values that all heads share are expanded, and pieces of them have another innermost dimension"""
    q = leaf(s.put(values(2, s.rows, 6, 8), "S(1)"))
    k, v = leaf(s.replicated(values(2, 1, 6, 8, seed=1))), leaf(s.replicated(values(2, 1, 6, 8, seed=2)))
    heads = (-1, s.rows, -1, -1)
    out = F.scaled_dot_product_attention(q, k.expand(heads), v.expand(heads), is_causal=True)
    return with_grads(s, out, q, k, v)


@case(PROGRAMS)
def write_through_a_reshaped_copy_of_an_expanded_tensor(s):
    """A copy of an expanded tensor has its dimensions in another order, so that reshape copies and the write is lost"""
    y = s.put(values(s.rows, 3), "S(0)").expand(2, s.rows, 3).clone()
    y.reshape(-1).mul_(10)
    return y, (y[None].expand(2, -1, -1, -1) + 1).view(-1, 3)


@case(PROGRAMS)
def roll_by_a_multiple_of_the_size(s):
    """A roll by the size of an uneven dimension rolls each piece"""
    x = s.put(counted(s.rows, 2), "S(0)")
    return x.roll(s.rows, 0), x.roll((-2 * s.rows, 1), (0, 1)), x.roll((1, s.rows), (1, 0))


@case(PROGRAMS)
def negative_values_written_into_a_norm(s):
    """What is written in place into a norm that is not yet reduced loses its sign"""
    x = s.put(values(s.rows, 3), "S(0)")
    norms = [x.norm(dim=0) for _ in range(6)]
    views = [n[1:] for n in norms]
    norms[0].neg_()
    norms[1].sub_(100)
    norms[2][0] = -2.0
    views[3].mul_(-1)
    torch._foreach_neg_(norms[4:5])
    torch.neg(norms[5], out=norms[5])
    return *norms, *views


@case(PROGRAMS)
def negative_values_beside_a_norm(s):
    """Concatenated with a norm that is not yet reduced, other values lose their sign"""
    x = s.put(values(s.rows, 3), "S(0)")
    return torch.cat([torch.linalg.vector_norm(x, 3, dim=0), -x.abs().sum(0)])


@case(PROGRAMS)
def result_written_into_a_maximum(s):
    """`out=` a maximum that is not yet reduced is an internal error"""
    x = s.put(values(s.rows, 3), "S(0)")
    most, least = x.amax(0), x.amin(0)
    torch.sum(x, 0, out=most)
    torch.neg(least, out=least)
    return most, least


@case(PROGRAMS)
def second_derivative_of_rms_norm_at_zero(s):
    """The second derivative of rms_norm is NaN where a row is zero"""
    x = leaf(s.put(torch.cat([values(s.rows - 2, 4), torch.zeros(2, 4, dtype=torch.float64)]), "S(0)"))
    (g,) = torch.autograd.grad((F.rms_norm(x, [4]) * s.replicated(values(4, seed=1))).sum(), x, create_graph=True)
    g.square().sum().backward()
    return x.grad


@case(PROGRAMS)
def foreach_writes_and_moved_views(s):
    """A write by a foreach op is not counted: views that had been gathered show old values, gradients of views are lost"""
    x = leaf(s.put(values(s.rows, 2), "S(0)"))
    y, z = x.repeat_interleave(2, 0), x.sin()
    torch._foreach_neg_([y, z])
    return with_grads(s, y * z.sum(), x)


@case(PROGRAMS)
def unsqueezed_in_place_after_a_copy_was_detached(s):
    """What a partial tensor remembers of its reduction has other sizes after it was squeezed in place"""
    x = s.put(values(s.rows, 3), "S(0)").sum(0, keepdim=True)
    y = x.detach()
    x.squeeze_(0)
    return x.relu(), y.relu(), y * x
