"""A wheel for each version of torch: what scikit-build-core asks for the package's version and what it depends on.

torch has no stable C++ ABI, so a wheel built with torch 2.15 is `intarsia 0.1.0+torch2.15` and needs `torch==2.15.*`. With build
isolation pip installs the torch that INTARSIA_TORCH names into the build's own environment:

    INTARSIA_TORCH=2.15.0 pip install .

Without (`pip install --no-build-isolation .`) the build takes the torch that is installed.
"""

import importlib.metadata
import os
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = re.search(r"^project\(Intarsia VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M).group(1)
HOW = (
    "say which torch to build for: `INTARSIA_TORCH=2.15.0 pip install .`, with the version that `pip show torch` prints; "
    "or build with the one that is installed: `pip install --no-build-isolation .`"
)
_state = "wheel"


def build_state(state):
    global _state
    _state = state


def get_requires_for_dynamic_metadata(settings):
    """Only asked with build isolation."""
    if _state == "sdist":
        return []
    version = os.environ.get("INTARSIA_TORCH", "").split("+")[0]
    if not version:
        raise SystemExit(f"intarsia: {HOW}")
    return [f"torch=={version}"]


def dynamic_metadata(settings, project):
    if _state == "sdist":
        return {"version": VERSION, "dependencies": []}
    try:
        torch = importlib.metadata.version("torch").split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(f"intarsia: no torch is there to build with; {HOW}") from None
    minor = ".".join(torch.split(".")[:2])
    return {"version": f"{VERSION}+torch{minor}", "dependencies": [f"torch=={minor}.*"]}


def dynamic_wheel(settings):
    return {"dependencies": True}
