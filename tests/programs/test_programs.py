"""The generator of random programs, its shrinker and its judgement: on faults that are planted."""

import argparse
import collections
import contextlib
import os
import pathlib
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]
import intarsia as it  # noqa: E402
import torch  # noqa: E402
from _harness import refuses, run as run_tests  # noqa: E402

import check  # noqa: E402
import compare  # noqa: E402
import generate  # noqa: E402
import inputs  # noqa: E402
import processes  # noqa: E402
import program as programs  # noqa: E402
import rows  # noqa: E402
import run  # noqa: E402
import shrink  # noqa: E402
import torch_differences  # noqa: E402
from draft import product  # noqa: E402
from report import Report  # noqa: E402

FIRST = """\
mesh [a=2,b=3]
random own
input x0 = randn(4, 3); seed 17; layout S(0),S(0) | 0:b>a; grad
input x1 = ints(0, 4, 5); seed 18; layout R,P(sum)
v1 = x0.sin()
v2, v3 = v1.chunk(2, 0)
v1.mul_(2)
"""


ROWS = "input x0 = randn(5, 3); seed 1; layout S(0); grad"


def parsed(*lines, mesh="[a=2]"):
    return programs.parse("\n".join([f"mesh {mesh}", *lines]))


def options(**given):
    chosen = {"seed": 0, "count": 4, "jobs": 2, "find": None, "shrink": 0, "ranks": None, "backend": "gloo"}
    return argparse.Namespace(**chosen | given, seen=collections.Counter(), record_of=check.record_of)


@contextlib.contextmanager
def replaced(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield before
    finally:
        setattr(owner, name, before)


def planted(name, fault):
    """Replaces a method of tensors by one that gives `fault(result, tensor)` where the tensor is laid out."""
    right = getattr(torch.Tensor, name)

    def wrong(self, *args, **kwargs):
        result = right(self, *args, **kwargs)
        return fault(result, self) if it.has_layout(self) else result

    return replaced(torch.Tensor, name, wrong)


# ---- text and generation ------------------------------------------------------------------------


def test_the_text_of_a_program_parses_back():
    assert str(programs.parse(FIRST)) == FIRST
    for seed in range(150):
        program, _ = generate.generate(seed)
        assert programs.parse(str(program)) == program, program


def test_comments_and_empty_lines_are_no_part_of_a_program():
    assert programs.parse("# found\n\n" + FIRST + "# x0: off by 1\n") == programs.parse(FIRST)


def test_a_text_that_is_no_program_is_refused():
    no_mesh = "the program has no mesh; its first line should be like: mesh [a=2]"
    refuses(ValueError, no_mesh, lambda: programs.parse("v1 = x0"))
    refuses(ValueError, "the mesh is '[a]'; it should be like [a=2,b=3]", lambda: programs.parse("mesh [a]"))
    refuses(ValueError, "should be like: input x0 = randn(4, 3); seed 17", lambda: parsed("input x0 = randn(4)"))
    refuses(ValueError, "random is 'some'; it should be default or own", lambda: parsed("random some"))


def test_a_seed_gives_one_program_on_as_many_ranks_as_are_asked_for():
    for seed in range(20):
        for ranks in (None, 2, 3, 4):
            program, called = generate.generate(seed, ranks)
            assert (program, called) == generate.generate(seed, ranks)
            assert ranks is None or product([size for _, size in program.mesh]) == ranks


def test_a_line_goes_with_all_that_need_what_it_makes():
    program = parsed("v1 = 1", "v2, v3 = v1, 2", "v4 = 3", "with torch.no_grad(): v5 = v3", "v6, = v5", "L = loss(v4)")
    assert programs.without_dependents(program, 0).lines == ("v4 = 3", "L = loss(v4)")


def test_partial_inputs_have_terms_that_differ_and_add_up_exactly():
    for kind in ("sum", "avg", "max", "min"):
        for code in ("randn(5, 3)", "coarse(4).to(torch.bfloat16)", "randn(3, 4).permute([1, 0])"):
            with it.lockstep("[a=3,b=2]") as world:
                full = inputs.make_plain(code, 1)
                made = inputs.distribute(full, f"P({kind}),S(0)", "[a=3,b=2]", 2, world)
                pieces = it.locals(made.detach())
                assert torch.equal(it.full(made), full) and made.stride() == full.stride()
                assert not torch.equal(pieces[0], pieces[2]), "all ranks have the same terms"


def test_each_op_of_the_samples_has_a_call_that_plain_torch_runs():
    broken = []
    for name, samples in rows.samples().items():
        if not any(is_called(sample) for sample in samples[:6]):
            broken.append(name)
    assert not broken, broken


def is_called(sample):
    """Whether a sample becomes a line that runs, on inputs of its own."""
    sizes = iter(rows.SIZES[min(max(1, len(sample.tensors)), 3)][1] + [[5]] * 9)
    names = {"aten": torch.ops.aten, "torch": torch, "inf": float("inf"), "nan": float("nan")}
    operands = []
    for dtype, given, values, order in sample.tensors:
        code = rows.maker_of(dtype, values, next(sizes) if given == "$" else eval(given))
        names[f"x{len(operands)}"] = inputs.make_plain(rows.in_order(code, order), 3)
        operands.append(f"x{len(operands)}")
    try:
        with torch.no_grad():
            eval(sample.call(operands), names)
    except (RuntimeError, IndexError, NotImplementedError):
        return False
    return True


def test_rows_of_the_page_are_read():
    table = rows.table_rows()
    assert (table["mm"], table["add"], table["view"], table["_foreach_add"]) == ("rule", "pointwise", "view", "each")
    assert table["bernoulli"] == "random" and table["zeros_like"] == "like" and "P" not in table


# ---- judgement ------------------------------------------------------------------------------------


def test_a_right_program_is_ok():
    result = run.check(parsed(ROWS, "v1 = x0.sin()", "L = loss(v1)", "L.backward()"))
    assert (result.kind, result.refusals, result.stale) == ("ok", [], 0), result


def test_values_gradients_and_forms_are_compared():
    program = parsed(ROWS, "v1 = x0.cos()", "L = loss(v1)", "L.backward()")
    faults = {
        "values": lambda result, _: result + 1e-6,
        "gradient": lambda result, tensor: result + (tensor - tensor.detach()),
        "sizes": lambda result, _: result[:-1],
        "dtype": lambda result, _: result.float(),
        "strides": lambda result, _: result.t().contiguous().t(),
        "requires_grad": lambda result, _: result.detach(),
    }
    for kind, fault in faults.items():
        with planted("cos", fault):
            found = {difference.kind for difference in check_until_backward(program, kind)}
        assert kind in found, (kind, found)


def check_until_backward(program, kind):
    """Differences of a program; without its end where the fault makes that impossible."""
    return run.check(program.change(lines=program.lines[:1]) if kind == "requires_grad" else program).differences


def test_values_that_are_not_finite_must_be_at_the_same_places():
    inf, nan = float("inf"), float("nan")
    wanted = torch.tensor([1.0, nan, inf])
    assert compare.values_apart(wanted, wanted.clone(), 1e-6) == ""
    for got in ([1.0, 2.0, inf], [1.0, nan, -inf], [nan, nan, inf]):
        assert "not finite at the same places" in compare.values_apart(wanted, torch.tensor(got), 1e-6)


def test_what_a_few_roundings_change_is_undetermined_and_the_rest_is_not():
    program = parsed("input x0 = randn(40); seed 1; layout R", "v1 = x0 / 3 * 3 > x0", "v2 = x0 > 0")
    wanted = run.reference_of(program, None)
    assert run.undetermined(program, wanted, run.limit_of(wanted)) >= {"v1"}
    assert "v2" not in run.undetermined(program, wanted, run.limit_of(wanted))


def test_a_fault_beside_an_undetermined_value_is_found():
    program = parsed("input x0 = randn(40); seed 1; layout S(0)", "v1 = x0 / 3 * 3 > x0", "v2 = x0.cos()")
    with planted("cos", lambda result, _: result + 1):
        assert [difference.name for difference in run.check(program).differences] == ["v2"]


def test_a_refused_line_is_dropped_and_the_rest_is_compared():
    def refuse(result, tensor):
        raise NotImplementedError("[cos] is not there")

    program = parsed(
        "input x0 = randn(5); seed 1; layout S(0)", "v1 = x0.cos()", "v2 = v1 + 1", "v3 = x0.sin()", "v3.mul_(2)"
    )
    with planted("cos", refuse):
        result = run.check(program)
    assert result.kind == "ok" and result.program.lines == ("v3 = x0.sin()", "v3.mul_(2)")
    assert [(each.line, each.stale) for each in result.refusals] == [("v1 = x0.cos()", False)]
    report = Report()
    report.add(check.record_of(7, result, {"cos"}, 4))
    assert "1 lines refused (25.000 %), 0 stale" in report.summary()
    assert "[cos] is not there" in report.refusals()[0] and "seed 7: v1 = x0.cos()" in report.refusals()[0]


def test_a_stale_view_is_counted_apart():
    program = parsed("input x0 = randn(4, 3); seed 1; layout S(0)", "v1 = x0.select(0, 3)", "x0.mul_(2)", "v2 = v1 + 1")
    result = run.check(program)
    assert [each.stale for each in result.refusals] == [True] and result.stale == 1 and result.kind == "ok"


def test_random_numbers_are_those_of_one_rank():
    text = ["random default", "input x0 = randn(7); seed 1; layout S(0)"]
    text += ["v1 = torch.rand_like(x0)", "v2 = nn.dropout(x0)"]
    assert run.check(parsed(*text)).kind == "ok"

    def draws_more(result, tensor):
        torch.rand(it.world_of(tensor).size())
        return result

    with planted("cos", draws_more):
        result = run.check(parsed(*text, "v3 = x0.cos()"))
    assert [str(each) for each in result.differences] == ["generator: its state depends on the ranks"]


def test_a_generator_of_their_own_is_the_one_that_counts():
    text = ["random own", "input x0 = randn(7); seed 1; layout S(0)", "x0.normal_(0., 1., generator=own)"]
    assert run.check(parsed(*text)).kind == "ok"
    ignores = [text[0], text[1], "x0.normal_(0., 1.)"]
    assert "the default one was used" in str(run.check(parsed(*ignores)).differences[-1])


def test_differences_of_torch_are_there():
    for each in torch_differences.LIST:
        assert each.shows(), f"torch has mended this, so it must go from the list: {each.why}"


# ---- finding, shrinking --------------------------------------------------------------------------


def test_a_planted_fault_is_found_and_shrunk():
    with planted("flip", lambda result, tensor: result + 1 if tensor.dim() > 1 else result):
        for seed in range(3000):
            program, _ = generate.generate(seed)
            if ".flip(" not in str(program) or program.random:
                continue
            with contextlib.suppress(run.Invalid):
                result = run.check(program)
                if result.differences and ".flip(" in made_what_differs(result):
                    break
        else:
            raise AssertionError("the fault was not found")
        smaller = shrink.shrink(result.program, check.is_still_wrong(result.differences[0]), seconds=60)
    assert len(smaller.lines) <= 4 and ".flip(" in str(smaller) and len(smaller.inputs) == 1, smaller
    assert programs.parse(str(smaller)) == smaller


def made_what_differs(result):
    name = result.differences[0].name
    return next((line for line in result.program.lines if name in programs.made_by(line)), "")


def test_a_program_shrinks_in_all_its_parts():
    program = parsed(
        "input x0 = randn(4, 6).permute([1, 0]); seed 1; layout SS(0,2),S(0); grad",
        "input x1 = randn(3); seed 2; layout R,R; grad",
        "v1 = x1 + 1", "v2 = x0.sin()", "v3 = move(v2, 'S(1),R')", "v4 = v3.cos()", "L = loss(v1, 0) + loss(v4, 1)",
        mesh="[a=3,b=2]",
    )  # fmt: skip
    with planted("cos", lambda result, _: result + 1):
        smaller = shrink.shrink(program, check.is_still_wrong(compare.Difference("values", "v4", "")), seconds=60)
    (only,) = smaller.inputs
    assert smaller.lines == (f"v4 = {only.name}.cos()",) and len(smaller.mesh) == 1, smaller
    assert (only.layout, only.grad) == ("R", False) and only.code in ("randn(1)", "randn(1, 1)"), smaller


def test_crashes_and_hangs_end_nothing_but_their_program():
    def check_seed(seed, _, drawn):
        drawn()
        if seed == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        if seed == 2:
            time.sleep(60)
        return check.record_of(seed, run.Result(generate.generate(seed)[0]), set(), 1)

    found = []
    with replaced(check, "check_seed", check_seed), replaced(check, "HANG_SECONDS", 12):
        check.run_lockstep(options(), lambda record: found.append((record["seed"], record["kind"])) or True)
    assert sorted(found) == [(0, "ok"), (1, "crash"), (2, "hang"), (3, "ok")], found


def test_a_program_of_a_file_runs_again():
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "program"
        file.write_text(str(parsed("input x0 = randn(5); seed 1; layout S(0)", "v1 = x0.cos()")))
        assert check.main(["--program", str(file)]) == 0
        with planted("cos", lambda result, _: result + 1):
            assert check.main(["--program", str(file)]) == 1


# ---- processes -------------------------------------------------------------------------------------

SIMPLE = parsed("input x0 = randn(5, 3); seed 1; layout P(sum); grad", "v1 = x0.sin()", "L = loss(v1)", "L.backward()")


def outcomes(*jobs, backend="gloo", seconds=60):
    """What comes of programs on two ranks; with time enough for a busy machine, or little where one rank waits."""
    return list(processes.Team(options(ranks=2, backend=backend), list(jobs), seconds).outcomes())


def test_processes_and_lockstep_are_alike():
    for backend in ("gloo", "shm"):
        (number, record), (_, again) = outcomes(SIMPLE, SIMPLE, backend=backend)
        assert (number, record["kind"], again["kind"]) == (0, "ok", "ok"), record


def on_a_rank(rank, act):
    """A fault on one process only."""

    def fault(result, tensor):
        world = it.world_of(tensor)
        return act(result) if not world.in_lockstep() and world.rank() == rank else result

    return fault


def raise_it(_):
    raise NotImplementedError("[sin] not on this rank")


def test_a_rank_that_raises_alone_is_found():
    with planted("sin", on_a_rank(1, raise_it)):
        ((number, kind, how),) = outcomes(SIMPLE, SIMPLE, seconds=8)
    assert number == 0 and kind in ("crash", "hang") and "rank 0:" in how and "rank 1:" in how, how


def test_a_process_that_dies_is_found():
    with planted("sin", on_a_rank(0, lambda _: os.kill(os.getpid(), signal.SIGKILL))):
        ((number, kind, how),) = outcomes(SIMPLE, seconds=20)
    assert kind in ("crash", "hang") and "rank 0: SIGKILL" in how, how


def test_a_layout_that_is_another_in_lockstep_is_found():
    def elsewhere(result, tensor):
        return result if it.world_of(tensor).in_lockstep() else it.redistribute(result, "S(0)")

    with planted("sin", elsewhere):
        ((_, record),) = outcomes(SIMPLE)
    assert record["kind"] == "wrong" and "on processes, f64[5, 3] on [a=2] in lockstep" in record["difference"], record


if __name__ == "__main__":
    torch.set_num_threads(1)
    run_tests(globals())
