"""Tests of the generator of random training runs: texts, draws, shrinking, and faults that are planted."""

import itertools
import os
import pathlib
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))
import training  # noqa: E402
import training_data as data  # noqa: E402
import training_ranks as ranks  # noqa: E402
from _harness import refuses, run  # noqa: E402
from torch import nn  # noqa: E402

PLAIN = (
    "seed=1 mesh=[dp=2] way=fully_shard options= batch=S(0) sizes=4x2x4 dtype=f64 entry=floats blocks=mlp model= "
    "optimizer=sgd steps="
)


def test_texts_are_read_as_they_were_written():
    for seed in range(500):
        for count in (None, 2, 3):
            made = data.draw(seed, count)
            assert data.parse(made.text()) == made, made.text()
            assert count is None or made.ranks() == count
            assert data.draw(seed, count) == made


def test_texts_that_are_none_are_refused():
    refuses(ValueError, "a run has seed, mesh, way", lambda: data.parse("seed=1 way=plan"))
    refuses(ValueError, "'mlq' is none of the blocks: mlp, ", lambda: data.parse(PLAIN.replace("=mlp", "=mlq")))
    keeps = PLAIN.replace("options=", "options=keeps")
    refuses(ValueError, "'keeps' is none of the options: keep, ", lambda: data.parse(keeps))
    refuses(ValueError, "'clap' is none of the habits", lambda: data.parse(PLAIN + "clip+clap"))
    refuses(ValueError, "block 0, '=0', shares with an earlier block", lambda: data.parse(PLAIN.replace("=mlp", "==0")))


def test_draws_have_everything():
    runs = [data.draw(seed) for seed in range(3000)]
    missing = set(data.WAYS) - {r.way for r in runs}
    for names in (data.BLOCKS, data.TRAITS, data.OPTIMIZERS, data.FORMS, data.HABITS, *data.OPTIONS.values()):
        missing |= {name for name in names if not any(r.has(name) for r in runs)}
    assert not missing, missing
    for text in ("=", "~", "!"):
        assert any(text in block for r in runs for block in r.blocks), text
    assert {r.ranks() for r in runs} == {1, 2, 3, 4}


def test_what_is_smaller_is_a_run_and_has_an_end():
    for seed in range(60):
        made = data.draw(seed)
        for less in data.smaller(made):
            assert data.parse(data.sensible(less).text()) == data.sensible(less), (made.text(), less.text())
        least = data.shrink(made, lambda less: 0 if less else None, tries=2000)
        assert len(least.steps) == 1 and not least.steps[0] and not least.model and least.optimizer == ("sgd",), least.text()


def test_documented_refusals_stand_in_the_docs():
    for name, refusal in training.DOCUMENTED.items():
        page = " ".join((HERE.parents[1] / refusal.page).read_text().split())
        assert refusal.sentence in page, name


def planted(spot):
    """A fault where a step clips gradients of a model with a norm."""

    def fault(made, habits):
        if "clip" in habits and any(isinstance(m, nn.LayerNorm) for m in made.nets[0].modules()):
            spot(made)

    return fault


def nudge(made):
    made.nets[0].head.bias.data.mul_(1 + 1e-6)


WITH_FAULT = data.parse(
    "seed=5 mesh=[dp=2,tp=2] way=fully_shard options=keep batch=S(0),R sizes=5x3x5 dtype=f64 entry=tokens "
    "blocks=mlp,norm,attention model=schedule optimizer=adamw steps=eval;acc1+clip;zero+reg"
)
LEAST = (
    "seed=5 mesh=[dp=2] way=fully_shard options= batch=S(0) sizes=2x2x4 dtype=f64 entry=floats blocks=norm model= "
    "optimizer=sgd steps=clip"
)


def test_a_planted_fault_is_found_and_shrunk():
    assert ranks.outcome_once(WITH_FAULT).good()
    search = training.Search(fault=planted(nudge))
    search.take(WITH_FAULT, search.once(WITH_FAULT))
    assert not search.good() and len(search.found) == 1
    least, outcome = search.found[0]
    assert least.text() == LEAST, least.text()
    assert "of 0.head.bias off by" in outcome.text, outcome.text
    assert search.summary().endswith("1 findings")


def test_draws_meet_the_planted_fault():
    drawn = (r for r in map(data.draw, range(5000)) if r.way == "parallelize" and r.has("clip") and r.has("norm"))
    runs = list(itertools.islice(drawn, 5))
    search = training.Search(fault=planted(nudge), shrinks=False)
    search.run(runs)
    assert search.kinds["wrong"] >= 1, search.summary()


def test_a_crash_and_a_hang_are_outcomes_and_the_next_runs_go_on():
    clean = data.parse(PLAIN)
    crash = [o for _, o in ranks.outcomes_of([clean, WITH_FAULT, clean], fault=planted(lambda _: os.abort()))]
    assert [o.kind for o in crash] == ["ok", "crash", "ok"] and crash[1].text.startswith("SIGABRT in <lambda>"), crash
    before, ranks.RUN_SECONDS = ranks.RUN_SECONDS, 5
    try:
        hang = [o.kind for _, o in ranks.outcomes_of([WITH_FAULT, clean], fault=planted(lambda _: time.sleep(100)))]
    finally:
        ranks.RUN_SECONDS = before
    assert hang == ["hang", "ok"], hang


def test_processes_say_the_same_and_a_rank_that_raises_alone_is_found():
    one = data.parse(PLAIN.replace("=mlp", "=norm") + "clip")
    plain = data.parse(PLAIN)
    replicated = data.parse(PLAIN.replace("fully_shard", "replicate").replace("S(0)", "-") + "b1+finish")

    def on_one(made):
        import intarsia

        if intarsia.world().rank() == 1:
            raise ValueError("on one rank")

    for backend in ("gloo", "shm"):
        assert [o.kind for _, o in ranks.outcomes_of([one, plain, replicated], 2, backend)] == ["ok"] * 3
        found = [o for _, o in ranks.outcomes_of([one, plain], 2, backend, planted(on_one))]
        assert [o.kind for o in found] == ["alone", "ok"], found
        assert "ValueError: on one rank" in found[0].text, found
    wrong = ranks.outcome_once(one, 2, "gloo", planted(nudge))
    assert wrong.kind == "wrong" and "head.bias" in wrong.text, wrong


if __name__ == "__main__":
    run(globals())
