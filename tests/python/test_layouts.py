"""Meshes, placements, layouts, plans and boxes under their C++ names; no ranks."""

import copy
import pickle

import intarsia as it
from _harness import refuses, run

MESH = it.Mesh({"dp": 2, "tp": 4})


def test_meshes_are_made_from_dicts_pairs_and_text():
    assert MESH == it.Mesh([("dp", 2), ("tp", 4)]) == it.Mesh("[dp=2,tp=4]") == it.Mesh.parse("[dp=2,tp=4]")
    assert (MESH.size(), MESH.size("tp"), MESH.size(0), MESH.names()) == (8, 4, 2, ["dp", "tp"])
    assert MESH.rank_at((1, 2)) == 6 and MESH.coordinate_of(6) == (1, 2) and MESH.coordinate_of(8) is None
    assert str(MESH) == "[dp=2,tp=4]" and repr(MESH) == "<Mesh [dp=2,tp=4]>" and len({MESH, it.Mesh(str(MESH))}) == 1


def test_meshes_derive():
    assert str(MESH.slice(["tp"], 5)) == "[tp=4]+4"
    assert MESH.flatten(["dp", "tp"], "all") == it.Mesh({"all": 8})
    assert MESH.split("tp", {"a": 2, "b": 2}).names() == ["dp", "a", "b"]
    assert MESH.range("tp", 1, 3).size() == 4 and MESH.reorder(["tp", "dp"]).rank_at((2, 1)) == 6
    assert it.Mesh.of_ranks({"x": 3}, [2, 0, 5]).has_table()


def test_placements():
    assert it.Placement.shard(0) == it.Placement.parse("S(0)") and it.Placement() == it.Placement.replicate()
    assert it.Placement.partial(it.Reduction.max).reduction() is it.Reduction.max
    assert str(it.Placement.partial_norm(2)) == "P(norm:2)" and it.Placement.shard(1).is_shard(1)
    assert it.Placement.strided_shard(0, 2).kind() is it.Placement.Kind.strided_shard


def test_layouts_from_text_and_placements():
    layout = it.to_layout("S(0),R", MESH)
    assert layout == it.Layout(MESH, [it.Placement.shard(0), it.Placement()]) == it.to_layout(str(layout))
    assert it.to_layout("S(-1),R", MESH, dims=3).placement("dp") == it.Placement.shard(2)
    assert layout.with_("tp", it.Placement.partial()).placements_text() == "S(0),P(sum)"
    ordered = it.Layout(MESH, [it.Placement.shard(0)] * 2, order=[(0, ["tp", "dp"])])
    assert str(ordered) == "[dp=2,tp=4] S(0),S(0) | 0:tp>dp" and ordered.axes_of(0) == (1, 0)
    spelled = it.Layout(MESH, ordered.strided_spelling(), strided=it.StridedMeans.order)
    assert spelled == ordered


def test_values_copy_and_pickle():
    for value in (MESH, it.to_layout("S(0),P(sum)", MESH), it.Placement.parse("SS(0,2)")):
        assert pickle.loads(pickle.dumps(value)) == value == copy.deepcopy(value)


def test_plans_are_data():
    plan = it.make_plan("S(0),P(sum)", "R,R", (512, 512), mesh=MESH)
    kinds = {step.kind for step in plan.steps}
    assert plan.collectives() == 2 and kinds == {it.StepKind.all_gather, it.StepKind.all_reduce}
    assert plan.shape == (512, 512) and plan.seconds > 0 and plan.peak_bytes >= 4 * 512 * 512
    slow = it.Topology.parse('{"levels": [{"gigabytes_per_s": 0.001}]}')
    assert it.make_plan("S(0),R", "R,R", (512, 512), mesh=MESH, topology=slow).seconds > plan.seconds
    try:
        it.make_plan("S(0),R", "R,R", (512, 512), mesh=MESH, peak_bytes=1000)
        raise AssertionError("a bound that nothing keeps to was accepted")
    except ValueError as error:
        assert "the least possible is" in str(error)
    assert it.make_plan("P(sum),R", "P(max),R", (8,), mesh=MESH) is None


def test_boxes():
    held = it.boxes("S(0),R", (5, 2), (1, 0), mesh=MESH)
    assert str(held) == "[3,5)x[0,2)" and held.local_shape() == (2, 2)
    assert it.local_shape("S(0),R", (5, 2), (1, 0), mesh=MESH) == (2, 2)
    assert held.offset() == (3, 0) and held.runs(0) == (it.Range(3, 5),) and held.box(0)[1] == it.Range(0, 2)
    assert it.lengths_along(it.to_layout("S(0),R", MESH), (5, 2), 0, ["dp"], (0, 0)) == [3, 2]


def test_tensor_types():
    kind = it.TensorType.parse("f32[8@dp, 4] P(sum)@tp", MESH)
    assert kind.dtype is it.DType.f32 and kind.shape == (8, 4) and str(kind) == "f32[8@dp, 4] P(sum)@tp"


def test_errors_are_pythons():
    refuses(ValueError, "tp", lambda: MESH.size("no"))
    refuses(ValueError, "", lambda: it.Mesh({"a": 0}))
    refuses(ValueError, "", lambda: it.to_layout("S(0)", MESH))
    refuses(ValueError, "no default mesh", lambda: it.to_layout("S(0)"))
    refuses(IndexError, "axis 7", lambda: it.to_layout("R,R", MESH).placement(7))


if __name__ == "__main__":
    run(globals())
