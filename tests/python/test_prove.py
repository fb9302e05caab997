"""Rules of users' own ops: a right one is proven, a wrong one caught, missing rows are listed."""

import gc
import threading

import intarsia as it
import torch
from _harness import refuses, run


@torch.library.custom_op("mylib::scaled_mm", mutates_args=())
def scaled_mm(a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return scale * (a @ b)


@scaled_mm.register_fake
def _(a, b, scale=1.0):
    return a.new_empty(a.shape[0], b.shape[1])


def keep_operands(ctx, inputs, output):
    a, b, ctx.scale = inputs
    ctx.save_for_backward(a, b)


def gradients(ctx, grad):
    a, b = ctx.saved_tensors
    return ctx.scale * (grad @ b.t()), ctx.scale * (a.t() @ grad), None


scaled_mm.register_autograd(gradients, setup_context=keep_operands)


@torch.library.custom_op("mylib::drop_mean", mutates_args=(), device_types="cpu")
def drop_mean(x: torch.Tensor, dim: int, times: float) -> torch.Tensor:
    return times * (x - x.mean(dim, keepdim=True))


SAMPLES = ["(f64[6, 4], f64[4, 5])", "(f64[3, 1], f64[1, 2], 2.0)", "(f32[5, 3], f32[3, 7], scale=-0.5)"]
ROWS = ["S(0),R -> S(0)", "R,S(1) -> S(1)", "S(1),S(0) -> P(sum)", "P,R -> P", "R,P -> P"]
MEANS = ["(f64[6, 4], -1, 2.0)", "(f64[4, 6], 0, 0.5)", "(f64[3, 1, 5], 1, 1.0)"]
FEWER = {"ranks": [2, 3], "combinations": 64, "sampled": 4}


def product_sizes(q):
    return [[q.sizes(0)[0], q.sizes(1)[1]]]


def prove_mm(**options):
    return it.prove("mylib::scaled_mm", SAMPLES, **FEWER | options)


def test_a_right_rule_is_proven():
    with it.add_rule("mylib::scaled_mm", ROWS, product_sizes):
        proof = prove_mm()
    assert proof.holds() and proof.wrong == [], str(proof)
    assert proof.op == "mylib::scaled_mm" and proof.samples == 3
    assert proof.cases > 100 and 0 < proof.gradients <= proof.cases
    assert str(proof).startswith("mylib::scaled_mm: 3 samples, ")
    assert repr(proof) == "<Proof of mylib::scaled_mm: holds>"


def test_a_right_rule_moves_nothing_where_a_row_fits():
    with it.add_rule("mylib::scaled_mm", ROWS, product_sizes), it.lockstep("[x=3]"):
        a, b = torch.randn(6, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
        with it.Budget(""):
            c = scaled_mm(it.distribute(a, "S(1)"), it.distribute(b, "S(0)"), 2.0)
        assert str(it.layout_of(c)) == "[x=3] P(sum)", it.layout_of(c)
        torch.testing.assert_close(it.full(c), 2.0 * a @ b)


def test_wrong_rules_are_caught_with_a_small_case():
    for wrong in ("S(1),S(0) -> P(max)", "S(0),R -> S(1)", "P,P -> P", "P(max),R -> P(max)"):
        with it.add_rule("mylib::scaled_mm", [wrong, *ROWS], product_sizes):
            proof = prove_mm()
            assert not proof.holds(), wrong
            first = proof.wrong[0]
            assert first.call.startswith("mylib::scaled_mm(") and " on [a=2]" in first.call, first
            assert it.prove_case(first.call) == first.difference != ""
        assert it.prove_case(first.call) == "", "without the rule the op is right"
    assert "WRONG" in str(proof) and repr(proof) == "<Proof of mylib::scaled_mm: WRONG>"


def test_wrong_sizes_are_caught():
    with it.add_rule("mylib::scaled_mm", ROWS):  # as the first tensor
        assert not prove_mm().holds()


def test_without_a_rule_the_rows_it_could_have_are_listed():
    def missing(**options):
        proof = it.prove("mylib::drop_mean", MEANS[:1], backward=False, **FEWER | options)
        assert proof.holds() and proof.gradients == 0
        return {m.row: m.sample for m in proof.missing}

    assert missing().items() >= {"S(0) -> S(0)": "mylib::drop_mean(f64[6, 4], -1, 2.0)"}.items()
    assert missing(missing=False) == {}
    with it.add_rule("mylib::drop_mean", ["S(0) -> S(0)"]):
        assert "S(0) -> S(0)" not in missing()
    with it.add_rule("mylib::scaled_mm", ROWS[:1], product_sizes):
        assert set(ROWS[1:3]) <= {m.row for m in prove_mm().missing}


def test_a_body_of_torch_ops_needs_no_rule():
    with it.lockstep("[x=3]"):
        a, b = it.randn((6, 4), "S(0)"), it.randn((4, 5), "R")
        assert str(it.layout_of(scaled_mm(a, b))) == "[x=3] S(0)"
        with it.add_rule("mylib::scaled_mm", [], product_sizes):
            assert str(it.layout_of(scaled_mm(a, b))) == "[x=3] R", "one that is there counts"
        assert str(it.layout_of(scaled_mm(a, b))) == "[x=3] S(0)"


def test_gradients_of_autograd_functions_lie_as_their_leaves():
    with it.add_rule("mylib::scaled_mm", ROWS, product_sizes), it.lockstep("[x=3]"):
        a, b = (it.randn((6, 6), layout, requires_grad=True) for layout in ("S(0)", "R"))
        scaled_mm(a, b, 2.0).sum().backward()
        assert str(it.layout_of(a.grad)) == "[x=3] S(0)" and str(it.layout_of(b.grad)) == "[x=3] R"


def test_rows_may_depend_on_the_call():
    seen = []

    def rows(q):
        seen.append((q.op, q.inputs, q.results, q.dtype(0), q.given(0), q.arg("dim"), q.arg("times")))
        assert q.dims() == [q.dim()]
        refuses(ValueError, "has no argument 'nonsense'", lambda: q.arg("nonsense"))
        refuses(ValueError, "do not see values", lambda: q.arg("x"))
        refuses(ValueError, "there is no tensor 3", lambda: q.sizes(3))
        kept.append(q)
        cuts = [f"S({d}) -> S({d})" for d in range(len(q.sizes(0))) if d != q.dim()]
        return [*cuts, "P -> P"] if q.arg("times") != 0.5 else cuts

    kept = []
    with it.add_rule("mylib::drop_mean", rows, fixed=["times"]) as rule:
        assert repr(rule) == "<Rule of mylib::drop_mean>"
        proof = it.prove("mylib::drop_mean", MEANS, **FEWER, backward=False)
        assert proof.holds(), str(proof)
    assert repr(rule) == "<Rule of mylib::drop_mean, removed>"
    assert ("mylib::drop_mean", 1, 1, torch.float64, True, -1, 2.0) in seen
    refuses(ValueError, "lives as long as", lambda: kept[0].sizes(0))


def test_a_rule_stays_until_it_is_removed():
    text = "mylib::scaled_mm(f64[4, 4], f64[4, 4]) with S(0); R on [a=2]"
    it.add_rule("mylib::scaled_mm", ["S(0),R -> S(1)"])  # nobody keeps the handle
    gc.collect()
    assert it.prove_case(text) != ""
    above = it.add_rule("mylib::scaled_mm", ROWS, product_sizes)
    assert it.prove_case(text) == "", "the last added counts"
    above.remove()
    above.remove()
    assert it.prove_case(text) != ""
    for rule in list(it._prove._in_force):
        rule.remove()
    assert it.prove_case(text) == ""


def test_errors_of_rules_are_shown():
    text = "mylib::scaled_mm(f64[4, 4], f64[4, 4]) with S(0); R on [a=2]"

    def raises(q):
        raise KeyError("mine")

    def said(**rule):
        with it.add_rule("mylib::scaled_mm", **rule):
            try:
                return it.prove_case(text)
            except (ValueError, RuntimeError) as error:
                return str(error)

    assert "the rule of mylib::scaled_mm raised KeyError: 'mine'" in said(rows=raises)
    assert "gives something else than a list of row texts" in said(rows=lambda q: 3)
    assert "gives something else than a list of row texts" in said(rows=ROWS, sizes=lambda q: [3, 4])
    refuses(ValueError, "Row::parse", lambda: it.add_rule("mylib::scaled_mm", ["S(0) R"]))


def test_rules_for_other_calls_are_refused_in_words():
    """Rows and sizes with other numbers of operands or results than the op has; never a crash."""

    def said(rows, sizes=None):
        with it.add_rule("mylib::scaled_mm", rows, sizes), it.lockstep("[x=2]"):
            x, y = it.ones([4, 6], "S(0)"), it.ones([6, 2], "R")
            try:
                torch.ops.mylib.scaled_mm(x, y, 2.0)
            except (ValueError, RuntimeError) as error:
                return str(error)
            return "it ran"

    of = "[add_rule] the rule of mylib::scaled_mm gives"
    op = "mylib::scaled_mm has"
    for row, count in (("S(0) -> S(0)", "1 operand,"), ("S(0),R,R -> S(0)", "3 operands,"), ("P -> P", "1 operand,")):
        assert f"{of} the row '{row}' for {count} but {op} 2 tensors" in said([row], product_sizes)
        assert f"{of} the row '{row}' for {count} but {op} 2 tensors" in said(lambda q, row=row: [row], product_sizes)
    assert f"{of} the row 'S(0),R -> S(0),R' with 2 results, but {op} 1" in said(["S(0),R -> S(0),R"], product_sizes)
    assert f"{of} the row 'S(0),R -> S(0) by formula', but has no formula" in said(
        ["S(0),R -> S(0) by formula"], product_sizes
    )
    assert "S(5) shards dimension 5, but the tensor has only 2" in said(["S(0),S(5) -> S(0)"], product_sizes)
    assert "S(7) shards dimension 7, but the tensor has only 2" in said(["S(0),R -> S(7)"], product_sizes)
    assert f"{of} the sizes of 2 results, but {op} 1" in said(ROWS, lambda q: [[4, 2], [4, 2]])
    assert f"{of} a result the sizes (4,-2)" in said(ROWS, lambda q: [[4, -2]])
    for text, count in (("MK -> MK", 1), ("MK,KN,Q -> MN", 3)):
        assert f"'{text}' is for {count} operands, but mylib::scaled_mm has 2" in said(text)
    assert f"{of} the sizes of 2 results, but {op} 1" in said("MK,KN -> MN,M")
    refuses(ValueError, "the index Q, which no operand has", lambda: it.add_rule("mylib::scaled_mm", "MK,KN -> MQ"))


def test_other_threads_run_meanwhile():
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.wait(0.001):
            ticks.append(1)

    other = threading.Thread(target=tick)
    other.start()
    it.prove("mm", limit=3)
    stop.set()
    other.join()
    assert len(ticks) > 10


def test_ops_of_aten_have_samples():
    ops = it.provable_ops()
    assert "aten::mm" in ops and "aten::sum.dim_IntList" in ops
    assert it.prove("mm", limit=2, **FEWER).holds()
    refuses(ValueError, "there are no samples of 'aten::nonsense'", lambda: it.prove("nonsense"))
    refuses(ValueError, "the samples are of aten::add", lambda: it.prove("mm", ["add(f64[3], f64[3])"]))
    refuses(TypeError, "there is no option 'speed'", lambda: it.prove("mm", speed=3))
    assert it.prove_case("mm(f64[2, 1], f64[1, 2]) with S(0); R on [a=2]") == ""


if __name__ == "__main__":
    run(globals())
