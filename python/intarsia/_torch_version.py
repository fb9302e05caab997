"""Whether the torch that was imported is the one that this package was built with. No symbol of it was looked up yet."""

import warnings


def kind(cuda):
    return f"CUDA {cuda}" if cuda else "CPU"


def minor(version):
    return version.split("+")[0].split(".")[:2]


def difference(built, built_cuda, version, cuda):
    """Why a package built with one torch cannot run with another, in words; None if it can."""
    if minor(version) != minor(built):
        return "torch has no stable C++ ABI between versions"
    if built_cuda and built_cuda.split(".")[0] != (cuda or "").split(".")[0]:
        return "it needs that CUDA build's libraries"
    return None


def check(torch, built):
    """ImportError if this torch is not the one of the build; a warning where that was not tested, or goes without NCCL.

    `built`: the module `_built`.
    """
    version, cuda = str(torch.__version__), torch.version.cuda
    have = f"this is torch {version} ({kind(cuda)})"
    way_out = (
        f"Install the wheel for it (its version ends with +torch{'.'.join(minor(version))}), or in Intarsia's sources: "
        "pip install --no-build-isolation ."
    )
    if why := difference(built.TORCH, built.CUDA, version, cuda):
        raise ImportError(f"[import] intarsia was built with torch {built.TORCH} ({kind(built.CUDA)}), and {have}: {why}. {way_out}")
    if ".".join(minor(version)) not in built.TESTED.split(", "):
        warnings.warn(
            f"intarsia was tested with torch {built.TESTED}, and {have}: results may be wrong. Run its tests (ctest -LE slow) "
            "before you rely on it, or install one of those.",
            stacklevel=3,
        )
    if cuda and not built.CUDA:
        warnings.warn(f"intarsia was built with torch for the CPU, and {have}: the backend nccl is missing. {way_out}", stacklevel=3)
