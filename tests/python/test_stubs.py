"""The stub of the extension names exactly what the extension has."""

import ast
import enum
import pathlib

import intarsia
from intarsia import _C

from _harness import run


def stub_names(body):
    """Names that a module or class body of the stub defines, and the bodies of its classes."""
    names, classes = set(), {}
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            classes[node.name] = node.body
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets}
        if isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}, classes


def real_names(scope):
    if isinstance(scope, type) and issubclass(scope, enum.Enum):
        return set(scope.__members__)
    if isinstance(scope, type):
        return {name for name in vars(scope) if not name.startswith("_")}
    return {name for name in dir(scope) if not name.startswith("_")}


def compare(where, scope, body):
    stubbed, classes = stub_names(body)
    real = real_names(scope)
    if issubclass(getattr(scope, "__class__", object), type) and issubclass(scope, Exception):
        return
    assert stubbed == real, f"{where}: only in the stub {stubbed - real}, only in the module {real - stubbed}"
    for name, inner in classes.items():
        compare(f"{where}.{name}", getattr(scope, name), inner)


def test_stub_matches_the_extension():
    stub = pathlib.Path(intarsia.__file__).parent / "_C.pyi"
    compare("_C", _C, ast.parse(stub.read_text()).body)


def test_package_is_typed():
    assert (pathlib.Path(intarsia.__file__).parent / "py.typed").exists()


def test_all_lists_what_exists_and_nothing_private():
    for name in intarsia.__all__:
        assert hasattr(intarsia, name) and not name.startswith("_")
    for name in ("Mesh", "Layout", "distribute", "redistribute", "full", "connect", "WorldError", "parallelize"):
        assert name in intarsia.__all__
    assert "torch" not in intarsia.__all__


if __name__ == "__main__":
    run(globals())
