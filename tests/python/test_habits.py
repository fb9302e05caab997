"""What people do with tensors and modules without thinking: .to(device), inference_mode, hooks, generators, rows."""

import intarsia as it
import torch
from _harness import on_ranks, refuses, run
from torch import nn
from torch.utils.checkpoint import checkpoint


def small_model(tied=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False))
    if tied:
        model[1].weight = model[0].weight
    return model


def test_a_tensor_may_be_its_own_data():
    with it.lockstep("[dp=2]"):
        x = it.distribute(torch.ones(4, 4), "S(0)")
        x.data = x
        assert x.sum().item() == 16


def test_modules_go_to_where_they_are():
    ids = torch.arange(8)
    for change in (lambda m: m.to("cpu"), lambda m: m.float(), lambda m: m.to(torch.bfloat16)):
        for tied in (False, True):
            plain = change(small_model(tied))
            with it.lockstep("[dp=2]"):
                model = small_model(tied)
                it.parallelize(model, it.mesh(), {"0.weight": "S(0)"})
                change(model)
                assert (model[1].weight is model[0].weight) == tied
                assert torch.equal(it.full(model(it.distribute(ids, "S(0)"))), plain(ids))


def test_other_data_is_seen_by_the_next_op():
    with it.lockstep("[dp=2]"):
        x = it.distribute(torch.ones(4), "S(0)")
        view, whole = x[1:3], it.redistribute(x * 1, "R") + x
        x.data = it.distribute(torch.full((4,), 5.0), "S(0)")
        assert it.full(whole).tolist() == [2.0] * 4
        assert it.full(it.redistribute(x, "R")).tolist() == [5.0] * 4
        view.fill_(7)  # of the data before
        assert it.full(x).tolist() == [5.0] * 4


def test_inference_mode():
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    views = (
        lambda t: t.t(), lambda t: t.view(-1, 2), lambda t: t[:, 1], lambda t: t[1], lambda t: t.detach(),
        lambda t: t.chunk(2, 1)[0], lambda t: t.transpose(0, 1), lambda t: t.unsqueeze(0), lambda t: t.diagonal(),
    )  # fmt: skip
    for how in ("parallelize", "fully_shard"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        wanted = model(x).detach()
        with it.lockstep("[dp=2]"):
            it.parallelize(model, it.mesh(), {}) if how == "parallelize" else it.fully_shard(model)
            d = it.distribute(x, "S(0)")
            with torch.inference_mode():
                torch.testing.assert_close(it.full(model(d)), wanted)
                torch.testing.assert_close(it.full(model(it.distribute(x, "S(0)"))), wanted)
                inside = it.distribute(x, "S(0)")
                for view in views:
                    for t in (d, inside):
                        assert torch.equal(it.full(view(t)), view(x)), view
                        assert view(t).is_inference() == t.is_inference()
                inside[0] = 3.0
                inside.mul_(2)
                assert it.full(inside)[0].tolist() == [6.0] * 4
            loss = model(d).square().mean()
            loss.backward()
            assert all(p.grad is not None for p in model.parameters())


def test_a_hook_after_the_first_use_leaves_the_layout_of_the_gradient():
    with it.lockstep("[a=2]"):
        kept = []
        for i in range(100):
            x = it.distribute(torch.randn(7), "SS(0,2)").requires_grad_()
            y = torch.cat([x, x]).reshape(7, 2)
            x.register_hook(lambda g: g * 0.5)
            (y * 2).sum().backward()
            assert it.layout_of(x.grad) == it.layout_of(x), i
            if i % 3 == 0:
                kept.append((x, y))


def draws(mesh):
    with it.lockstep(mesh):
        torch.manual_seed(0)
        x = it.distribute(torch.rand(6, generator=torch.Generator().manual_seed(1)), "S(0)")
        own = torch.Generator().manual_seed(3)
        drawn = [
            torch.poisson(x * 3), torch.normal(x, x), torch.normal(x, 1.0), torch._standard_gamma(x + 1),
            torch.binomial(x.round() * 5, x), nn.functional.rrelu(x - 0.5, training=True), nn.functional.dropout(x),
            torch.poisson(x * 3, generator=own), torch.bernoulli(x, generator=own), torch.rand_like(x),
        ]  # fmt: skip
        return [it.full(t).tolist() for t in drawn] + [torch.rand(2, generator=own).tolist()]


def test_random_ops_without_a_rule_draw_the_same_on_any_number_of_ranks():
    assert draws("[a=1]") == draws("[a=2]") == draws("[a=3]")


def test_bernoulli_draws_from_its_generator():
    with it.lockstep("[a=2]"):
        x = it.distribute(torch.full((40,), 0.5), "S(0)")

        def draw(default, own):
            torch.manual_seed(default)
            return it.full(torch.bernoulli(x, generator=torch.Generator().manual_seed(own)))

        assert torch.equal(draw(1, 3), draw(2, 3)) and not torch.equal(draw(1, 3), draw(1, 4))


def test_rows_of_a_sharded_parameter_can_be_written():
    with it.lockstep("[dp=2]"):
        net = nn.Linear(4, 3)
        it.fully_shard(net)
        with torch.no_grad():
            net.weight.zero_()
            net.weight[0] = 1
            net.weight.data[2, 1:3] = 5
            net.weight.detach()[1:2].fill_(2)
            net.bias[1] = 7
        assert it.full(net.weight.detach()).tolist() == [[1.0] * 4, [2.0] * 4, [0.0, 5.0, 5.0, 0.0]]
        assert it.full(net.bias.detach())[1] == 7
        x = it.distribute(torch.ones(2, 4), "S(0)")
        assert it.full(net(x) - net.bias).tolist() == [[4.0, 8.0, 10.0]] * 2  # what is gathered has the new values
        mixed = nn.Linear(4, 3)
        it.fully_shard(mixed, param_dtype=torch.bfloat16)
        with torch.no_grad():
            refuses(ValueError, "it is stored as f32: bf16[4] on [dp=2]; write to the parameter", lambda: mixed.weight[0].fill_(1))


def test_zero_grad_drops_what_no_sync_kept():
    torch.manual_seed(0)
    plain = nn.Linear(4, 3)
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    plain(y).square().sum().backward()
    for to_none in (True, False):
        with it.lockstep("[dp=2]"):
            net = nn.Linear(4, 3)
            net.load_state_dict(plain.state_dict())
            sharding = it.fully_shard(net)
            with sharding.no_sync():
                net(it.distribute(x, "S(0)")).square().sum().backward()
            net.zero_grad(set_to_none=to_none)
            net(it.distribute(y, "S(0)")).square().sum().backward()
            torch.testing.assert_close(it.full(net.weight.grad), plain.weight.grad)


def test_a_full_tensor_is_no_norm():
    with it.lockstep("[a=2]"):
        refuses(ValueError, "values with a sign are no norm", lambda: it.distribute(torch.ones(3), "P(norm:2)"))
        x = it.distribute(torch.ones(3), "R")
        refuses(ValueError, "or of a norm, which has no sign", lambda: it.redistribute(x, "P(norm:2)"))


@on_ranks(2)
def test_indexing_under_hooks_of_saved_tensors_does_not_wait_for_itself():
    it.init({"dp": 2}, timeout=60)
    w = it.distribute(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), "S(0)").requires_grad_()
    x = it.distribute(torch.ones(4, 4), "S(0)").requires_grad_()
    for _ in range(3):
        y = checkpoint(lambda x: x * w[0, 1] * w[2, 3], x, use_reentrant=False)
        y.sum().backward()
    assert it.full(x.grad).shape == (4, 4)


@on_ranks(2)
def test_a_call_is_made_while_the_backend_frees_the_hooks_of_another():
    it.init({"dp": 2})
    x = it.distribute(torch.ones(4), "R").requires_grad_()
    for _ in range(200):  # Gloo frees works under the lock that the next call waits for: a race
        rows = [it.distribute(torch.ones(4, 4), "S(0)").requires_grad_() for _ in range(4)]
        checkpoint(lambda x, rows=rows: sum(x * r[0] * r[3, 1] for r in rows), x, use_reentrant=False).sum().backward()
    assert torch.equal(it.full(x.grad), torch.full((4,), 800.0))


@on_ranks(2)
def test_ranks_with_an_empty_piece_go_the_same_way():
    it.init({"dp": 2})
    x, weight = (it.distribute(torch.ones(1), "S(0)").requires_grad_() for _ in range(2))
    bias = torch.ones(1, requires_grad=True)
    y = nn.functional.layer_norm(x, (1,), weight, bias)
    for gradient in torch.autograd.grad((y * torch.ones(1)).sum(), [x, weight, bias]):
        assert it.full(gradient).shape == (1,)


def test_what_a_formula_gives_back_is_no_operand():
    aten = torch.ops.aten
    for layout in ("P(sum)", "S(0)", "R", None):
        with it.lockstep("[dp=2]"):
            values = torch.tensor([1.0, 2.0, 3.0, 4.0])
            grad = values.clone() if layout is None else it.distribute(values, layout)
            x = it.distribute(torch.tensor([1.0, -1.0, 2.0, 0.0]), "S(0)")
            _, mean, rstd = aten.native_layer_norm(x, [4], x, x, 1e-5)
            for _ in range(2):  # the second time with moves that are remembered
                bias_grad = aten.native_layer_norm_backward(grad, x, [4], mean, rstd, x, x, [True, True, True])[2]
                assert torch.equal(it.full(bias_grad), values)
                bias_grad.zero_()
            assert torch.equal(grad if layout is None else it.full(grad), values)


def test_what_depends_on_strides_is_as_for_the_full_tensor():
    """Pieces of a slice are dense: determinants factor a contiguous matrix transposed, and their backward asks the slice.
    A piece may look channels last where the tensor does not: batch_norm's backward then mixed two orders."""

    def log_determinant(x):
        return torch.linalg.slogdet(x[..., :3, :3]).logabsdet.sum() + torch.linalg.det(x[..., 1:4, 1:4]).sum()

    def normed(x):
        mean = torch.linspace(-1, 1, 3, dtype=x.dtype)
        y = nn.functional.batch_norm(x.permute(0, 2, 1, 3), mean, mean.abs() + 1)
        return (y * torch.arange(12.0, dtype=x.dtype).reshape(1, 3, 2, 2)).sum()

    torch.manual_seed(3)
    for function, sizes in ((log_determinant, (4, 5)), (log_determinant, (2, 4, 4)), (normed, (1, 2, 3, 2))):
        plain = torch.randn(*sizes, dtype=torch.float64, requires_grad=True)
        function(plain).backward()
        for layout in ("R", "P(sum)", *(f"S({dim})" for dim in range(plain.dim()))):
            with it.lockstep("[a=2]"):
                x = it.distribute(plain.detach(), layout).requires_grad_()
                function(x).backward()
                assert torch.allclose(it.full(x.grad), plain.grad, rtol=1e-9, atol=1e-12), (function, layout)


def test_a_moved_view_of_a_tensor_of_inference_mode_is_stale_after_a_write():
    with it.lockstep("[a=2]"):
        x = it.distribute(torch.arange(6.0).reshape(2, 3), "S(1)")
        with torch.inference_mode():
            base = x + 1
        view = base[:, 2]
        view.mul_(2)  # through the view
        assert it.full(view).tolist() == [6, 12] and it.full(base)[:, 2].tolist() == [6, 12]
        base.detach().div_(2)
        refuses(ValueError, "older than the last write to its base", lambda: it.full(view))
        assert it.full(base[:, 2]).tolist() == [3, 6]


@on_ranks(2)
def test_all_ranks_refuse_to_write_elements_that_share_memory():
    """Also a rank whose piece is too small to show that they do."""
    it.init({"dp": 2})
    x = it.distribute(torch.ones(1), "S(0)")
    wide = x.expand([3])
    writes = [
        lambda: wide.mul_(2),
        lambda: wide.index_put_((torch.tensor([0, 2]),), torch.ones(2), accumulate=True),
        lambda: wide.masked_fill_(torch.tensor([True, False, True]), 2),
        lambda: wide.normal_(),
        lambda: torch._foreach_add_([wide], 1),
        lambda: torch.add(x.expand(3).clone(), 1, out=wide),
    ]
    for write in writes:
        refuses(ValueError, "refers to a single memory location", write)
    wide[0:0] = x  # nothing is written
    assert it.full(wide).tolist() == [1, 1, 1]


def test_wrong_calls_say_what_plain_torch_says():
    """Also where a rule would divide by what is wrong, or look for dimensions that are not there."""
    aten, z = torch.ops.aten, torch.zeros
    calls = [
        lambda d: aten.avg_pool2d(d(z(1, 5, 5)), [2], [0]),
        lambda d: aten.avg_pool2d(d(z(5)), [2]),
        lambda d: torch.convolution(d(z(2, 3, 5)), d(z(4, 3, 3)), None, [0], [0], [1], False, [0], 1),
        lambda d: torch.convolution(d(z(2, 3, 5, 5)), d(z(4, 3, 3, 3)), None, [1, 1], [], [1, 1], False, [0, 0], 1),
        lambda d: torch.convolution(d(z(2, 3, 2)), d(z(4, 3, 5)), None, [1], [0], [1], False, [0], 1),
        lambda d: torch.convolution(d(z(5)), d(z(4, 3, 5)), None, [1], [0], [1], False, [0], 1),
        lambda d: torch.constant_pad_nd(d(z(2)), [-3, -3]),
        lambda d: torch.pixel_shuffle(d(z(1, 4, 2, 2)), 0),
        lambda d: torch.pixel_unshuffle(d(z(1, 4, 2, 2)), 0),
        lambda d: torch.pixel_shuffle(d(z(4, 2)), 2),
        lambda d: aten.im2col(d(z(1, 3, 5, 5)), [2, 2], [1, 1], [0, 0], [0, 0]),
        lambda d: aten.im2col(d(z(1, 3, 5, 5)), [], [1, 1], [0, 0], [1, 1]),
        lambda d: aten.col2im(d(z(1, 4, 4)), [3, 3], [0, 0], [1, 1], [0, 0], [1, 1]),
        lambda d: aten.embedding_dense_backward(d(z(())), d(z((), dtype=torch.long)), 9, -1, False),
    ]
    with it.lockstep("[a=2]"):
        for call in calls:
            errors = []
            for laid_out in (lambda t: t, lambda t: it.distribute(t, "R")):
                try:
                    call(laid_out)
                    errors.append("none")
                except (RuntimeError, IndexError) as error:
                    errors.append(str(error).splitlines()[0])
            assert errors[0] == errors[1], errors


if __name__ == "__main__":
    run(globals())
