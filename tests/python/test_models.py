"""Whole models of torch.nn, written for one device, train on [dp=2,tp=2] in lockstep as on one rank."""

import zoo_training as zt
from _harness import run


def check(model, *names):
    """All cases of a model, or the named ones, train as on one rank. Returns what was compared, by name."""
    cases = [case for case in zt.CASES if case.model == model and (not names or case.name in names)]
    assert cases and len(cases) >= len(names), f"{model} has no such cases"
    outcomes = {case.name: zt.compare(case) for case in cases}
    for outcome in outcomes.values():
        assert outcome.equal(), zt.summary(outcome)
        assert len(outcome.alone) == zt.STEPS and len(set(outcome.alone)) == zt.STEPS  # it does train
    return outcomes


def test_resnet_with_batch_norm():
    for outcome in check("ResNet").values():
        assert "running" in outcome.apart["buffers"][1]  # its statistics were compared


def test_unet():
    check("U-Net")


def test_lstm_gru_and_cell():
    check("LSTM")


def test_vit():
    outcomes = check("ViT")
    # Heads and columns that divide evenly need the sums of tensor parallelism, and nothing else.
    assert not outcomes["even"].gathers() and not outcomes["even"].without_rule(), outcomes["even"].bill


def test_llama_with_experts():
    check("MoE Llama", "even", "uneven", "uneven, cut inside experts")


def test_llama_with_grouped_mm():
    check("MoE Llama", "grouped_mm", "grouped_mm, uneven", "grouped_mm, uneven, cut inside experts")


def test_differences_are_seen():
    case = next(case for case in zt.CASES if case.model == "ViT")
    alone, _ = zt.train(case, case.dtype)
    again, _ = zt.train(case, case.dtype)
    assert all(apart == 0 for apart, _ in zt.differences(again, alone).values())
    name = "blocks.1.mlp.2.weight, step 2"
    largest = alone["gradients"][name].abs().max()
    for wrong in (2 * zt.TOLERANCE * largest, float("nan"), float("inf")):
        again["gradients"][name] = alone["gradients"][name].clone()
        again["gradients"][name][0, 0] += wrong
        apart, where = zt.differences(again, alone)["gradients"]
        assert apart > zt.TOLERANCE and where == name, (apart, where)


if __name__ == "__main__":
    run(globals())
