"""What `import intarsia` says to a torch that it was not built with, or not tested with."""

import types
import warnings

import torch
from _harness import run

from intarsia import _built, _torch_version


def built(version="2.13.0", cuda="", tested="2.13, 2.15"):
    return types.SimpleNamespace(TORCH=version, CUDA=cuda, TESTED=tested)


def said(torch_version, cuda, of_build):
    """The error, or the warnings, of that torch with that build; empty: none."""
    there = types.SimpleNamespace(__version__=torch_version, version=types.SimpleNamespace(cuda=cuda))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _torch_version.check(there, of_build)
        except ImportError as error:
            return f"ImportError: {error}"
    return " ".join(str(each.message) for each in caught)


def test_the_torch_of_the_build_is_silent():
    assert said(torch.__version__, torch.version.cuda, _built) == ""
    assert said("2.13.0+cpu", None, built()) == ""
    assert said("2.13.1", None, built()) == ""
    assert said("2.15.0+cu132", "13.2", built("2.15.0", "13.0")) == ""


def test_another_version_is_one_sentence_with_the_way_out():
    text = said("2.15.0+cu132", "13.2", built())
    assert text.startswith("ImportError: [import] intarsia was built with torch 2.13.0 (CPU), and this is torch 2.15.0+cu132 (CUDA 13.2): ")
    assert "+torch2.15" in text and "pip install --no-build-isolation ." in text
    assert said("2.1.0", None, built()).startswith("ImportError")


def test_a_cuda_build_needs_that_cuda():
    for there in (None, "12.8"):
        assert "needs that CUDA build's libraries" in said("2.15.0", there, built("2.15.0", "13.2"))


def test_what_was_not_tested_or_goes_without_nccl_is_warned_of():
    assert "was tested with torch 2.13, 2.15, and this is torch 2.16.0 (CPU)" in said("2.16.0", None, built("2.16.0"))
    assert "the backend nccl is missing" in said("2.13.0+cu130", "13.0", built())


if __name__ == "__main__":
    run(globals())
