"""What PyTorch's DTensor answers to the cases of tests/python/museum.py, on processes over Gloo.

    dtensor.py [--ranks 2,3,4] [--update docs/museum.md] [NAME ...]

Prints for each case whether the answer is right, wrong (with the first value that differs) or an error, and what was
sent that need not be. --update writes the page; of cases that were not run it keeps what it says. A case in which ranks
disagree, or that does not end, is followed by new processes for the rest.
"""

import argparse
import contextlib
import datetime
import json
import logging
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))

import museum  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, debug, distribute_tensor, rand  # noqa: E402
from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry, TensorMeta  # noqa: E402
from torch.distributed.tensor._utils import ExplicitRedistributionContext  # noqa: E402
from torch.distributed.tensor.experimental import local_map  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

SECONDS = 10  # until a collective counts as hanging
LAUNCH_SECONDS = 600
BROKEN = 3  # exit code of ranks that cannot go on together


# ---- DTensor as a side of the museum --------------------------------------------------------------


class Theirs:
    """DTensor, on this process's rank."""

    meshes = {}

    def __init__(self, ranks, axes, rows):
        self.ranks, self.rows, self.mesh = ranks, rows, museum.MESHES[axes][ranks]
        self.device_mesh = self.mesh_of(("a", "b")[:axes], self.mesh)
        self.notes = []

    def mesh_of(self, names, sizes):
        if (names, sizes) not in self.meshes:
            self.meshes[names, sizes] = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        return self.meshes[names, sizes]

    def layout(self, text):
        """Mesh, placements and order of `[y=1,z=2] R,S(0) | 0:b>a`."""
        mesh = self.device_mesh
        if text.startswith("["):
            axes, text = text[1:].split("] ")
            names, sizes = zip(*(axis.split("=") for axis in axes.split(",")))
            mesh = self.mesh_of(names, tuple(map(int, sizes)))
        text, _, order = text.partition(" | ")
        placements = [placement(word) for word in re.findall(r"[A-Z]+(?:\([^)]*\))?", text)]
        if order:
            dim, names = order.split(":")
            order = (ShardOrderEntry(int(dim), tuple("ab".index(name) for name in names.split(">"))),)
        return mesh, placements, order or None

    def put(self, full, layout):
        mesh, placements, order = self.layout(layout)
        if order is None:
            return distribute_tensor(full, mesh, placements, src_data_rank=None)
        piece = full
        for axis in order[0].mesh_dims:
            piece = nth_chunk(piece, mesh.size(axis), mesh.get_local_rank(axis))
        meta = TensorMeta(full.shape, full.stride(), full.dtype)
        spec = DTensorSpec(mesh, tuple(placements), tensor_meta=meta, shard_order=order)
        return DTensor(piece.clone(), spec, requires_grad=False)

    def replicated(self, tensor):
        return self.put(tensor, ",".join("R" for _ in self.mesh))

    def put_b_first(self, full):
        return self.put(full, f"SS(0,{self.mesh[1]}),S(0)")

    def parts(self, pieces, layout, shape=None):
        mesh, placements, _ = self.layout(layout)
        sizes = {} if shape is None else {"shape": torch.Size(shape), "stride": torch.empty(shape).stride()}
        return DTensor.from_local(pieces[dist.get_rank()].clone(), mesh, placements, run_check=False, **sizes)

    def full(self, tensor):
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def move(self, tensor, layout):
        mesh, placements, _ = self.layout(layout)
        return tensor.redistribute(mesh, placements)

    def claimed(self, tensor):
        boxes = [(box.offsets[0], box.offsets[0] + box.sizes[0]) for box in tensor.__create_chunk_list__()]
        return torch.cat([torch.arange(*box, dtype=tensor.dtype) for rank in gathered(boxes) for box in rank])

    def held(self, tensor):
        return torch.cat(gathered(tensor.to_local()))

    def by_hand(self, tensor, piecewise, layout, on_one_rank, grad=None):
        piece = piecewise(tensor.to_local(grad_placements=grad and self.layout(grad)[1]), dist.get_rank())
        return DTensor.from_local(piece, self.device_mesh, self.layout(layout)[1], run_check=False)

    def region(self, body, inputs, in_, out, on_one_rank, grads=(), shapes=()):
        placements = tuple(self.layout(text)[1] for text in in_)
        of_grads = tuple(self.layout(g)[1] if g else placements[i] for i, g in enumerate(grads)) or None
        options = {"in_placements": placements, "in_grad_placements": of_grads, "device_mesh": self.device_mesh}
        return local_map(body, self.layout(out)[1], **options)(*inputs)

    def rand(self, size, layout):
        mesh, placements, _ = self.layout(layout)
        return rand(size, dtype=torch.float64, device_mesh=mesh, placements=placements)

    def seed(self, by_rank=False):
        torch.manual_seed(1 + dist.get_rank() if by_rank else 1)

    def by_rank(self, make):
        return make(dist.get_rank())

    def as_others_have_it(self, tensor):
        return self.full(self.move(self.move(tensor, "S(0)"), "R"))

    def same_layout(self, a, b):
        return tuple(a.placements) == tuple(b.placements)

    def check_replicas(self, tensor):
        pass

    def check_plain(self):
        pass

    def cached(self):
        return debug._get_fast_path_sharding_prop_cache_stats()[1]  # misses, of a cache that drops nothing

    def on_first_two(self, program):
        mesh = DeviceMesh("cpu", [0, 1])
        if dist.get_rank() > 1:
            return program(lambda full, _: full)
        return program(lambda full, layout: distribute_tensor(full, mesh, self.layout(layout)[1], src_data_rank=None))

    def flatten_mesh(self):
        self.device_mesh = init_device_mesh("cpu", self.mesh, mesh_dim_names=("a", "b"))
        self.device_mesh["a", "b"]._flatten()

    @contextlib.contextmanager
    def sends(self, bill):
        with debug.CommDebugMode() as counted:
            yield
        allowed = sum(int(n) for n in re.findall(r"(\d+) ", bill))
        if counted.get_total_counts() > allowed:
            self.notes.append(f"{sent(counted)}, where {bill or 'nothing'} need be sent")

    @contextlib.contextmanager
    def explicit(self):
        with ExplicitRedistributionContext():
            yield

    def announced(self, op):
        with contextlib.suppress(RuntimeError), ExplicitRedistributionContext(), debug.CommDebugMode() as counted:
            op()
            if counted.get_total_counts():
                self.notes.append(f"{sent(counted)}, also in explicit mode")
            return
        if not self.notes:
            self.notes.append("refused in explicit mode")


def placement(word):
    if word == "R":
        return Replicate()
    kind, arguments = word[:-1].split("(")
    if kind == "P":
        return Partial(arguments)
    dim, *split = map(int, arguments.split(","))
    return _StridedShard(dim, split_factor=split[0]) if split else Shard(dim)


def nth_chunk(tensor, n, i):
    given = tensor.chunk(n)
    return given[i] if i < len(given) else tensor[:0]


def gathered(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def sent(counted):
    return ", ".join(f"{n} {str(op).split('.')[-1]}" for op, n in counted.get_comm_counts().items() if n)


# ---- one rank --------------------------------------------------------------------------------------


def answer(case, ranks, rows):
    """What one rank gets: right, wrong or error, and a text."""
    wanted = museum.results(case, museum.Plain(ranks, case.axes, rows))
    side = Theirs(ranks, case.axes, rows)
    try:
        got = museum.results(case, side)
    except Exception as error:  # noqa: BLE001  whatever it is, it is the answer
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        return "error", f"{type(error).__name__}: {' '.join(lines[0].split())}".removesuffix(": ")
    with contextlib.suppress(AssertionError):
        case.check(got, wanted)
        return "right", "; ".join(side.notes)
    return "wrong", difference(got, wanted)


def difference(got, wanted):
    """The first value that differs."""
    if len(got) != len(wanted):
        return f"{len(got)} results, not {len(wanted)}"
    for a, b in zip(got, wanted):
        if a.shape != b.shape:
            return f"size {list(a.shape)}, not {list(b.shape)}"
        if a.dtype != b.dtype:
            return f"{a.dtype}, not {b.dtype}"
    for exact in (False, True):  # what differs much, or else what differs at all
        for a, b in zip(got, wanted):
            loose = a.is_floating_point() and not exact
            differs = ~torch.isclose(a, b, rtol=1e-9, atol=1e-11, equal_nan=True) if loose else a != b
            if differs.any():
                at = differs.flatten().nonzero()[0]
                return f"{shown(a.flatten()[at])}, not {shown(b.flatten()[at])}"
    return "wrong"


def shown(value):
    digits = 9 if value.dtype == torch.float32 else 7
    return f"{value.item():.{digits}g}" if value.is_floating_point() else str(value.item())


def as_rank(names, folder):
    """Runs cases, and writes a line for each; ends early where ranks have come apart."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = datetime.timedelta(seconds=SECONDS)
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), ranks, rank == 0, timeout=4 * limit)
    dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=ranks, timeout=limit)
    with open(f"{folder}/{rank}", "a") as file:
        for name in names:
            for rows in museum.CASES[name].sizes():
                kind, text = answer(museum.CASES[name], ranks, rows)
                file.write(json.dumps([name, rows, rank, kind, text]) + "\n")
                file.flush()
                store.set(f"{name} {rows} {rank}", "apart" if apart(text) else kind)
                kinds = {store.get(f"{name} {rows} {other}").decode() for other in range(ranks)}
                if "apart" in kinds or ("error" in kinds and len(kinds) > 1):
                    store.set(f"end {rank}", "")
                    store.wait([f"end {other}" for other in range(ranks)])
                    os._exit(BROKEN)
    os._exit(0)


def apart(text):
    return any(word in text.lower() for word in ("timed out", "timeout", "connection", "gloo"))


# ---- all of them -----------------------------------------------------------------------------------


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_world(ranks, names):
    """Answers of all ranks: {(name, rows): [(rank, kind, text), ...]}."""
    answers, left = {}, list(names)
    while left:
        with tempfile.TemporaryDirectory() as folder:
            env = os.environ | {"WORLD_SIZE": str(ranks), "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, __file__, "--as-rank", folder, *left]
            quiet = {"stderr": subprocess.DEVNULL}
            running = [subprocess.Popen(command, env=env | {"RANK": str(r)}, **quiet) for r in range(ranks)]
            try:
                for process in running:
                    process.wait(timeout=LAUNCH_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            finally:
                for process in running:
                    process.kill()
                    process.wait()
            files = sorted(pathlib.Path(folder).iterdir())
            lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        for name, rows, *rest in lines:
            answers.setdefault((name, rows), []).append(tuple(rest))
        done = {name for name, *_ in lines}
        last = max((left.index(name) for name in done), default=0)
        if not done:
            answers[left[0], museum.EVEN] = [(0, "error", "no answer")]
        left = left[last + 1 :]
    return answers


def joined(answers):
    """One answer of several ranks: the worst, with the lowest rank that gives it."""
    for kind in ("wrong", "error", "right"):
        found = [(rank, text) for rank, k, text in answers if k == kind]
        if not found:
            continue
        texts = sorted(found, key=lambda a: (apart(a[1]), a[0]))
        some = f" on {len(found)} of {len(answers)} ranks" if kind == "error" and len(found) < len(answers) else ""
        return kind, texts[0][1] + some
    return "error", "no answer"


def summary(case, worlds):
    """The answers of a case on all worlds, as one text."""
    by_kind = {}
    for ranks, answers in worlds.items():
        for rows in case.sizes():
            if (case.name, rows) in answers:
                kind, text = joined(answers[case.name, rows])
                where = f"{ranks} ranks, {rows} rows" if case.uneven else f"{ranks} ranks"
                by_kind.setdefault(kind, []).append((text, where))
    texts = []
    for kind in ("wrong", "error", "right"):
        found = by_kind.get(kind, [])
        if not found:
            continue
        text, where = found[0] if kind != "right" else next((f for f in found if f[0]), found[0])
        text = re.sub(r"\[/[^]]*\] |\[127[^ ]*", "", text)  # paths and ports of Gloo
        text = text if len(text) < 160 else text[:157] + "..."
        only = f" ({where})" if len(by_kind) > 1 or kind != "right" else ""
        kind = "refused" if kind == "error" and case.refused and not apart(text) else kind
        texts.append(f"{kind}{': ' + text if text else ''}{only}")
    return "; ".join(texts) or "not run"


# ---- the page --------------------------------------------------------------------------------------


def row(case, theirs):
    theirs = theirs.replace("](", "]\\(")  # which would be a link
    cells = (case.bug, case.source, theirs, museum.intarsia_answers(case), f"`{case.name}`")
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


BEGIN, END = "<!-- written by bench/museum/dtensor.py -->", "<!-- end -->"


def tables(theirs):
    lines = []
    for title in dict.fromkeys(case.section for case in museum.CASES.values()):
        lines += [f"## {title}", "", "| bug | seen in | PyTorch 2.13's DTensor | Intarsia | case |"]
        lines += ["|---|---|---|---|---|"]
        lines += [row(case, theirs[case.name]) for case in museum.CASES.values() if case.section == title] + [""]
    return "\n".join(lines)


def counts(theirs):
    kinds = {}
    for text in theirs.values():
        kind = next((k for k in ("wrong", "error", "refused") if re.search(rf"(^|; ){k}: ", text)), "right")
        kind = "more" if kind == "right" and ("need be sent" in text or "also in explicit mode" in text) else kind
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def on_page(page):
    """The answers that the page has."""
    rows = re.findall(r"^\| .* \| .* \| (.*) \| .* \| `(\w+)` \|$", page.read_text(), re.MULTILINE)
    return {name: text.replace("\\|", "|").replace("]\\(", "](") for text, name in rows}


def update(page, theirs):
    text = page.read_text()
    theirs = on_page(page) | theirs
    missing = [name for name in museum.CASES if name not in theirs]
    assert not missing, f"the page has no answers for {missing}"
    theirs = {name: theirs[name] for name in museum.CASES}
    kinds = counts(theirs)
    head = (
        f"Of {len(theirs)} cases DTensor gives {kinds.get('wrong', 0)} wrong on some number of ranks, ends "
        f"{kinds.get('error', 0)} with an error where there is an answer, sends in {kinds.get('more', 0)} more than "
        f"need be, refuses {kinds.get('refused', 0)} that Intarsia refuses too, and gives "
        f"{kinds.get('right', 0)} right.\n"
    )
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    page.write_text(text[:begin] + "\n\n" + head + "\n" + tables(theirs) + text[end:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,3,4")
    parser.add_argument("--update", type=pathlib.Path)
    parser.add_argument("--as-rank", dest="folder", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    names = given.names or list(museum.CASES)
    if given.folder:
        as_rank(names, given.folder)
    worlds = {ranks: run_world(ranks, names) for ranks in map(int, given.ranks.split(","))}
    theirs = {name: summary(museum.CASES[name], worlds) for name in names}
    for name, text in theirs.items():
        print(f"{name}: {text}")
    print(counts(theirs))
    if given.update:
        update(given.update, theirs)


if __name__ == "__main__":
    main()
