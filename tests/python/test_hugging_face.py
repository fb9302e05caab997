"""Unmodified models of transformers: a masked Llama, T5 and a ResNet, in lockstep and on 2 processes. The rest of them, in
every way: promises/edges/5-hugging-face.
"""

import importlib.util

from _harness import on_ranks, run

HERE = importlib.util.find_spec("transformers") is not None


def compare(ways):
    if not HERE:
        return print("transformers is not installed")
    import hugging_face
    import intarsia as it

    for way in ways:
        for name in hugging_face.QUICK:
            far, without_rule = hugging_face.compare(name, way, it.mesh())
            assert far <= hugging_face.TOLERANCE, f"{name} {way}: {far}"
            assert not without_rule, f"{name} {way}: {without_rule}"


def test_models_train_evaluate_and_generate_in_lockstep():
    import intarsia as it

    with it.lockstep("[dp=2]"):
        compare(["dp", "fully_shard"])


@on_ranks(2)
def test_models_train_evaluate_and_generate_on_processes():
    import intarsia as it

    it.init("[dp=2]")
    compare(["dp", "fully_shard"])


if __name__ == "__main__":
    run(globals())
