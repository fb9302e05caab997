"""Optimizers, clipping and Muon on several processes equal those on one device."""

import intarsia as it
import torch
from _harness import on_ranks, refuses, run
from torch import nn

STEPS = 10
FLOAT = torch.float64

# Parameters: sizes, and their layouts on three meshes; uneven, some pieces are empty.
SIZES = [(7, 5), (9, 6), (5,), (3, 8), (2, 6)]
MESHES = {
    "[dp=4]": ["S(0)"] * 5,
    "[dp=2,tp=2]": ["S(0),S(1)", "R,S(0)", "S(0),R", "R,R", "S(0),S(0)"],
    "[tp=3]": ["S(0)", "S(1)", "R", "S(1)", "S(0)"],
}

OPTIMIZERS = {
    "SGD": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01), ("foreach", "fused")),
    "Adam": (torch.optim.Adam, dict(lr=0.1, amsgrad=True), ("foreach", "fused")),
    "AdamW": (torch.optim.AdamW, dict(lr=0.1), ("foreach", "fused")),
    "Adagrad": (torch.optim.Adagrad, dict(lr=0.1), ("foreach", "fused")),
    "RMSprop": (torch.optim.RMSprop, dict(lr=0.1, momentum=0.9, centered=True), ("foreach",)),
}


def forms_of(fast):
    """Loop, and what else torch has for the optimizer."""
    return [dict(foreach=False)] + [{form: True} for form in fast]


def parameters(layouts, mesh, sizes=SIZES, dtype=FLOAT):
    g = torch.Generator().manual_seed(0)
    plain = [nn.Parameter(torch.randn(size, generator=g, dtype=dtype)) for size in sizes]
    ours = [nn.Parameter(it.distribute(p.detach(), layout, mesh=mesh)) for p, layout in zip(plain, layouts)]
    return ours, plain


def loss_of(params):
    """A smooth function that ties all parameters together."""
    return sum((p.sin() * (i + 1)).square().sum() + p.sum() for i, p in enumerate(params))


def train(params, optimizer, steps=STEPS):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(params)
        (it.full(loss) if it.has_layout(loss) else loss).backward()
        optimizer.step()


def same(ours, plain, rtol=1e-11, atol=1e-11):
    for i, (p, q) in enumerate(zip(ours, plain)):
        torch.testing.assert_close(
            it.full(p.detach()), q.detach(), rtol=rtol, atol=atol, msg=lambda m: f"parameter {i}: {m}"
        )


def follow_plain(mesh):
    for name, (make, options, fast) in OPTIMIZERS.items():
        for form in forms_of(fast):
            ours, plain = parameters(MESHES[mesh], it.Mesh(mesh))
            optimizer = make(ours, **options, **form)
            train(ours, optimizer)
            train(plain, make(plain, **options, **form))
            same(ours, plain)
            it.check_optimizer(optimizer)
            for state in optimizer.state.values():
                kept = [value for value in state.values() if value.dim() > 0]
                assert kept and all(it.has_layout(value) for value in kept), (name, form)


@on_ranks(4)
def test_optimizers_equal_one_device_on_pieces_of_rows():
    follow_plain("[dp=4]")


@on_ranks(4)
def test_optimizers_equal_one_device_in_mixed_layouts():
    follow_plain("[dp=2,tp=2]")


@on_ranks(3)
def test_optimizers_equal_one_device_on_three_ranks():
    follow_plain("[tp=3]")


# ---- Muon ------------------------------------------------------------------------------------

MATRICES = [(8, 12), (15, 6), (7, 7), (2, 9), (33, 20)]


def muon_pair(mesh, layouts, dtype, **options):
    """Ten steps of ours on distributed matrices, and of torch's own Muon on plain ones."""
    ours, plain = parameters(layouts, mesh, MATRICES, dtype)
    train(ours, it.Muon(ours, lr=0.02, **options))
    train(plain, torch.optim.Muon(plain, lr=0.02, **options))
    return ours, plain


def muon_follows_torch(mesh):
    layouts = MESHES[mesh]
    for options in (
        {},
        dict(nesterov=False, weight_decay=0),
        dict(adjust_lr_fn="match_rms_adamw", ns_steps=3, momentum=0.5),
        dict(ns_coefficients=(2.0, -1.5, 0.5)),
    ):
        ours, plain = muon_pair(it.Mesh(mesh), layouts, torch.float32, **options)
        # Both iterate in bf16 on the same whole matrices. A last bit of f32 that differs may become one of
        # bf16 in an entry, 2^-8 of an update, each of which is at most lr * 0.2 * sqrt(33) or so, in 10 steps.
        same(ours, plain, rtol=0, atol=10 * 0.02 * 1.2 * 2**-8)


@on_ranks(4)
def test_muon_equals_torchs_own_on_pieces_of_rows():
    muon_follows_torch("[dp=4]")


@on_ranks(4)
def test_muon_equals_torchs_own_in_mixed_layouts():
    muon_follows_torch("[dp=2,tp=2]")


@on_ranks(3)
def test_muon_equals_torchs_own_on_three_ranks():
    muon_follows_torch("[tp=3]")


@on_ranks(4)
def test_muon_in_double_equals_plain_to_the_last_digits():
    mesh = it.Mesh("[dp=2,tp=2]")
    ours, plain = parameters(MESHES["[dp=2,tp=2]"], mesh, MATRICES)
    train(ours, it.Muon(ours, lr=0.02, ns_dtype=FLOAT))
    train(plain, it.Muon(plain, lr=0.02, ns_dtype=FLOAT))
    same(ours, plain, 1e-10, 1e-10)


@on_ranks(4)
def test_muon_sends_all_matrices_there_and_back_at_once():
    ours, _ = parameters(MESHES["[dp=2,tp=2]"], it.Mesh("[dp=2,tp=2]"), MATRICES, torch.float32)
    optimizer = it.Muon(ours)
    it.full(loss_of(ours)).backward()
    optimizer.step()
    before = it.world().ledger().totals().calls
    optimizer.step()
    assert it.world().ledger().totals().calls - before == 2, it.world().ledger().dump(8)


@on_ranks(4)
def test_muon_state_goes_through_state_dict_and_schedulers():
    ours, _ = parameters(MESHES["[dp=2,tp=2]"], it.Mesh("[dp=2,tp=2]"), MATRICES, torch.float32)
    optimizer = it.Muon(ours, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(ours, optimizer, 2)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    other = it.Muon(ours)
    other.load_state_dict(optimizer.state_dict())
    it.check_optimizer(other)
    for p in ours:
        a, b = optimizer.state[p]["momentum_buffer"], other.state[p]["momentum_buffer"]
        assert it.layout_of(a) == it.layout_of(b) == it.layout_of(p) and torch.equal(it.full(a), it.full(b))


def test_muon_and_clipping_run_in_lockstep():
    with it.lockstep("[dp=2,tp=3]") as world:
        layouts = ["S(0),S(1)", "R,S(0)", "S(0),R", "R,R", "S(0),S(0)"]
        g = torch.Generator().manual_seed(0)
        plain = [nn.Parameter(torch.randn(size, generator=g, dtype=FLOAT)) for size in MATRICES]
        ours = [nn.Parameter(it.distribute(p.detach(), layout)) for p, layout in zip(plain, layouts)]
        train(ours, it.Muon(ours, lr=0.02, ns_dtype=FLOAT))
        train(plain, it.Muon(plain, lr=0.02, ns_dtype=FLOAT))
        same(ours, plain, 1e-10, 1e-10)
        torch.testing.assert_close(it.get_grad_norm(ours), nn.utils.get_total_norm([p.grad for p in plain]))


def test_muon_refuses_what_is_no_matrix():
    refuses(ValueError, "[Muon] takes matrices of real numbers, not f32[3] plain", lambda: it.Muon([nn.Parameter(torch.ones(3))]))
    refuses(ValueError, "adjust_lr_fn is 'other'", lambda: it.Muon([], adjust_lr_fn="other"))
    refuses(ValueError, "lr is -1", lambda: it.Muon([nn.Parameter(torch.ones(3, 3))], lr=-1))


def test_owners_are_balanced():
    assert it.balanced_owners([1, 9, 3, 3, 3], 2) == [0, 0, 1, 1, 1]


# ---- clipping --------------------------------------------------------------------------------


def with_gradients(specs):
    """Parameters on several meshes, and plain ones, with gradients; and their plain twins."""
    g = torch.Generator().manual_seed(3)
    ours, plain = [], []
    for size, layout in specs:
        p, grad = torch.randn(size, generator=g, dtype=FLOAT), torch.randn(size, generator=g, dtype=FLOAT)
        plain.append(nn.Parameter(p.clone()))
        plain[-1].grad = grad.clone()
        ours.append(nn.Parameter(it.distribute(p, layout) if layout else p.clone()))
        ours[-1].grad = it.distribute(grad, layout) if layout else grad.clone()
    return ours, plain


THREE_AXIS_SETS = [
    ((7, 3), "[dp=2,tp=2] S(0),R"),
    ((5, 6), "[dp=2,tp=2] R,S(1)"),
    ((9, 2), "[dp=2,tp=2] S(0),S(0)"),
    ((4,), "[dp=2,tp=2] R,R"),
    ((3,), None),
]
SEVERAL_MESHES = THREE_AXIS_SETS + [((5,), "[ep=2] S(0)"), ((5,), "[ep=2]+2 S(0)"), ((6, 2), "[all=4] S(0)")]


@on_ranks(4)
def test_clipping_equals_one_device_with_one_reduction():
    for specs in (THREE_AXIS_SETS, SEVERAL_MESHES):
        for order in (2.0, 1.0, float("inf")):
            ours, plain = with_gradients(specs)
            with it.Budget("1 P->R"):
                norm = it.clip_grad_norm_(ours, 0.5, order)
            wanted = nn.utils.clip_grad_norm_(plain, 0.5, order)
            assert not it.has_layout(norm)
            torch.testing.assert_close(norm, wanted, rtol=1e-12, atol=0)
            for p, q in zip(ours, plain):
                if it.has_layout(p) and not it.layout_of(p).mesh().contains(it.world().rank()):
                    continue
                got = it.full(p.grad) if it.has_layout(p) else p.grad
                torch.testing.assert_close(got, q.grad, rtol=1e-12, atol=1e-14)


@on_ranks(4)
def test_torchs_clipping_gives_the_same():
    distributed = [(size, layout) for size, layout in THREE_AXIS_SETS if layout]
    ours, _ = with_gradients(distributed)
    again, _ = with_gradients(distributed)
    norm = it.clip_grad_norm_(ours, 0.5)
    theirs = nn.utils.clip_grad_norm_(again, 0.5)
    torch.testing.assert_close(norm, it.full(theirs) if it.has_layout(theirs) else theirs)


@on_ranks(4)
def test_clipping_takes_a_generator_and_refuses_what_is_not_finite():
    ours, _ = with_gradients(THREE_AXIS_SETS)
    it.clip_grad_norm_((p for p in ours), 1.0)
    ours[0].grad.fill_(float("nan"))
    refuses(ValueError, "the norm of order 2 over 5 tensors is", lambda: it.clip_grad_norm_(ours, 1.0, error_if_nonfinite=True))


# ---- states ----------------------------------------------------------------------------------


@on_ranks(3)
def test_states_that_do_not_fit_are_refused():
    mesh = it.Mesh("[tp=3]")
    torch.manual_seed(0)
    module = nn.Linear(5, 4)
    module.weight = nn.Parameter(it.distribute(module.weight.detach(), "S(0)", mesh=mesh))
    module.bias = nn.Parameter(it.distribute(module.bias.detach(), "R", mesh=mesh))
    optimizer = torch.optim.Adam(module.parameters())
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    it.check_optimizer(optimizer)
    state = optimizer.state[module.weight]
    state["exp_avg"] = it.redistribute(state["exp_avg"], "S(1)")
    message = "the state exp_avg of parameter weight is f32[4, 5@tp] on [tp=3], but the parameter is f32[4@tp, 5] on [tp=3]"
    refuses(ValueError, message, lambda: it.check_optimizer(optimizer, module))
    refuses(ValueError, "of parameter 0 of group 0 is", lambda: it.check_optimizer(optimizer))
    named = torch.optim.Adam(module.named_parameters())
    named.load_state_dict(optimizer.state_dict())
    refuses(ValueError, "of parameter weight is", lambda: it.check_optimizer(named))
    state["exp_avg"] = torch.zeros(4, 5)
    refuses(ValueError, "distribute() the state to [tp=3] S(0)", lambda: it.check_optimizer(optimizer))


if __name__ == "__main__":
    run(globals())
