"""Code as it is written for one device: losses collected in plain tensors, scaled gradients, evaluation on torch's quick
ways, packed sequences, formats of memory. Each equals plain torch, or says what to do instead.
"""

import copy
import math

import intarsia as it
import torch
import torch.nn.functional as F
from _harness import on_ranks, refuses, run
from torch import nn
from torch.nn.utils import rnn

MESH = "[dp=2]"


def numbers(*sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def on_both(test):
    """The test in lockstep on 2 ranks; `test_..._on_processes` runs it on as many processes."""

    def in_lockstep():
        with it.lockstep(MESH):
            test()

    in_lockstep.__name__ = test.__name__

    @on_ranks(2)
    def on_processes():
        it.init(MESH)
        test()

    on_processes.__name__ = on_processes.body.__name__ = f"{test.__name__}_on_processes"
    globals()[on_processes.__name__] = on_processes
    return in_lockstep


# ---- plain tensors that are written ----------------------------------------------------------


@on_both
def test_a_plain_tensor_collects_losses():
    x = numbers(5, 4)
    for layout in ("S(0)", "S(1)", "R"):
        d = it.distribute(x, layout)
        total, same = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        before = total
        it.clear_bill()
        for t, of in ((total, d), (same, x)):
            t += of.mean()
            t += of.square().sum()
            t.mul_(of.max())
            t.lerp_(of.sum(), 0.3)
        assert total is before and not it.has_layout(total) and total._version == same._version
        torch.testing.assert_close(total, same)
        # What it needed is in the bill, as any hidden move.
        sent = 8 * 2 * it.world().size() if it.world().in_lockstep() else 8 * 2  # of each rank to each
    assert layout == "R" or f"P->R dp  {sent} bytes" in str(it.bill()), it.bill()


@on_both
def test_plain_tensors_are_written_in_full():
    x = numbers(5, 4)
    rows = torch.tensor([6, 0, 2, 4, 5])
    d = it.distribute(x, "S(0)")

    def written(of):
        out = [torch.zeros(5, 4, dtype=torch.float64) for _ in range(3)]
        out[0].copy_(of)
        out[1][of > 0] = 7.0
        out[2].addcmul_(of, of)
        big = torch.zeros(7, 4, dtype=torch.float64)
        big[1:6] = of
        indexed = torch.zeros(7, 4, dtype=torch.float64)
        indexed[rows] = of
        indexed.index_add_(0, rows, of)
        lists = [torch.ones(5, 4, dtype=torch.float64) for _ in range(2)]
        torch._foreach_add_(lists, [of, of * 2])
        torch._foreach_lerp_(lists, [of, of], 0.5)
        half = torch.zeros(5, 4)
        half.copy_(of)
        return [*out, big, indexed, *lists, half]

    for got, want in zip(written(d), written(x), strict=True):
        assert not it.has_layout(got)
        torch.testing.assert_close(got, want)


@on_both
def test_out_may_be_plain():
    x = numbers(4, 4)
    d = it.distribute(x, "S(0)")

    def given(of):
        outs = [torch.empty(0, dtype=torch.float64) for _ in range(5)]
        right = torch.empty(4, 4, dtype=torch.float64)
        places = torch.empty(0, dtype=torch.long)
        assert torch.add(of, of, out=right) is right
        torch.mm(of, of.t(), out=outs[0])
        torch.logsumexp(of, 0, out=outs[1])  # by formula, where the dimension is cut
        torch.sum(of, 0, out=outs[2])
        values = torch.sort(of, 0, out=(outs[3], places))
        assert values[0] is outs[3] and values[1] is places
        torch.linalg.matrix_norm(of, out=outs[4])
        return [right, *outs, places]

    for got, want in zip(given(d), given(x), strict=True):
        torch.testing.assert_close(got, want)


@on_both
def test_gradients_flow_through_plain_tensors_that_are_written():
    x = numbers(5, 4)

    def gradient(whole):
        a = whole.requires_grad_()
        total = torch.zeros((), dtype=torch.float64)
        total += a.square().sum()
        total += a.mean()
        buffer = torch.zeros(7, 4, dtype=torch.float64)
        buffer[1:6] = a * 3
        (total * 2 + buffer.square().sum()).backward()
        return a.grad

    got = gradient(it.distribute(x.clone(), "S(0)"))
    assert it.layout_of(got) == it.layout_of(it.distribute(x, "S(0)"))
    torch.testing.assert_close(it.full(got), gradient(x.clone()))
    leaf = torch.zeros(5, 4, dtype=torch.float64, requires_grad=True)
    refuses(RuntimeError, "a leaf Variable that requires grad", lambda: leaf.add_(it.distribute(x, "S(0)")))


@on_both
def test_explicit_mode_refuses_hidden_moves_into_plain_tensors():
    d = it.distribute(numbers(4, 4), "S(0)")
    plain = torch.zeros(4, 4, dtype=torch.float64)
    with it.CommunicationScope("explicit_only"):
        for write in (lambda: plain.copy_(d), lambda: plain.add_(d), lambda: torch.add(d, d, out=plain)):
            refuses(ValueError, "explicit", write)
        assert plain.abs().sum() == 0
        plain.add_(it.redistribute(d, "R"))
    torch.testing.assert_close(plain, numbers(4, 4))


@on_ranks(2)
def test_what_a_plain_tensor_held_before_it_is_overwritten_is_not_compared():
    it.init(MESH)
    d = it.distribute(numbers(4, 4), "S(0)")
    it.check_plain_tensors()
    plain = torch.full((4, 4), float(it.world().rank()), dtype=torch.float64)
    plain.copy_(d)
    torch.add(d, d, out=torch.full((4, 4), float(it.world().rank()), dtype=torch.float64))
    it.check_plain_tensors()


# ---- scaled gradients ------------------------------------------------------------------------


def trained_with_a_scaler(wrap, batch, poison, optimizer, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    model = wrap(model) or model
    optimizer = optimizer(model.parameters(), **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    scales = []
    for step in range(5):
        optimizer.zero_grad()
        scaler.scale(model(batch).square().mean()).backward()
        if step == 2:
            poison(model)
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, {name: p.detach() for name, p in model.named_parameters()}


def poison_last_row(model):
    """An infinite gradient, which one rank alone holds where rows are sharded."""
    with torch.no_grad():
        next(model.parameters()).grad[-1, -1] = math.inf


def same_as_one_device(wrap, batch, poison=poison_last_row):
    for make, options in ((torch.optim.SGD, {"lr": 0.1}), (torch.optim.Adam, {"fused": True})):
        want = trained_with_a_scaler(lambda model: None, numbers(4, 4), poison_last_row, make, **options)
        got = trained_with_a_scaler(wrap, batch, poison, make, **options)
        assert got[0] == want[0] == [8.0, 16.0, 8.0, 8.0, 16.0], (got[0], want[0])
        for name, p in got[1].items():
            torch.testing.assert_close(it.full(p) if it.has_layout(p) else p, want[1][name.removeprefix("module.")])


@on_both
def test_a_grad_scaler_skips_the_step_on_all_ranks():
    batch = it.distribute(numbers(4, 4), "S(0)")
    same_as_one_device(lambda model: it.fully_shard(model) and None, batch)
    same_as_one_device(lambda model: it.parallelize(model, it.mesh(), {"0.*": "S(0)", "2.weight": "S(1)"}) and None, batch)


@on_both
def test_what_scaled_gradients_send_is_one_number():
    p = it.distribute(numbers(6, 4), "S(0)").requires_grad_()
    q = it.distribute(numbers(5), "S(0)").requires_grad_()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale((p.sum() + q.sum())).backward()
    it.clear_bill()
    with it.CommunicationScope("explicit_only"):
        scaler.unscale_(torch.optim.SGD([p, q]))
    lines = [line for line in str(it.bill()).splitlines() if "_amp_foreach" in line]
    assert len(lines) == 1 and lines[0].startswith("1 x P->R"), it.bill()
    torch.testing.assert_close(it.full(p.grad), torch.ones(6, 4, dtype=torch.float64))


@on_ranks(2)
def test_a_grad_scaler_with_replicate():
    it.init(MESH)
    rank = it.world().rank()

    def poison(model):
        poison_last_row(model)  # on all ranks: gradients are averaged before

    same_as_one_device(lambda model: it.replicate(model) and None, numbers(4, 4).chunk(2)[rank], poison)


# ---- torch's quick ways in evaluation --------------------------------------------------------


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2).double().eval()


@on_both
def test_an_encoder_in_evaluation_takes_masks():
    x = numbers(4, 5, 8)
    padding = torch.zeros(4, 5, dtype=torch.bool)
    padding[:, 4], padding[1, 2:] = True, True
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    layouts = {"layers.*.linear1.*": "S(0)", "layers.*.linear2.weight": "S(1)"}
    for options in ({}, {"norm_first": True, "activation": "gelu"}):
        plain = encoder(**options)
        for plan in ({}, layouts):
            model = encoder(**options)
            it.parallelize(model, it.mesh(), plan)
            for place in (lambda t: it.distribute(t, "S(0)"), lambda t: t):  # a plain batch too
                with torch.no_grad():
                    for masks in ({}, {"mask": causal}):
                        torch.testing.assert_close(it.full(model(place(x), **masks)), plain(x, **masks))
                    got = it.full(model(place(x), src_key_padding_mask=place(padding)))
                    want = plain(x, src_key_padding_mask=padding)
                torch.testing.assert_close(got[~padding], want[~padding])
            assert model.use_nested_tensor == plain.use_nested_tensor
    assert not it.has_layout(plain(x))


def test_encoders_can_be_scripted_and_traced():
    """What reads the source of a module finds torch's."""
    plain, x = encoder(), numbers(2, 3, 8)
    torch.testing.assert_close(torch.jit.script(plain)(x), plain(x))
    torch.testing.assert_close(torch.export.export(plain, (x,)).module()(x), plain(x))


@on_both
def test_attention_in_evaluation_gathers_nothing():
    x = numbers(4, 5, 8)
    padding = torch.zeros(4, 5, dtype=torch.bool)
    padding[:, 3:] = True
    plain = nn.MultiheadAttention(8, 2, batch_first=True).double().eval()
    model = copy.deepcopy(plain)
    it.parallelize(model, it.mesh(), {})
    d, mask = it.distribute(x, "S(0)"), it.distribute(padding, "S(0)")
    it.clear_bill()
    with torch.no_grad():
        for options in ({}, {"need_weights": False}, {"average_attn_weights": False}):
            for name, plain_mask, own_mask in (
                ("key_padding_mask", padding, mask),
                ("attn_mask", torch.ones(5, 5, dtype=torch.bool).triu(1), torch.ones(5, 5, dtype=torch.bool).triu(1)),
            ):
                got = model(d, d, d, **options, **{name: own_mask})
                want = plain(x, x, x, **options, **{name: plain_mask})
                torch.testing.assert_close(it.full(got[0]), want[0])
                assert (got[1] is None) == (want[1] is None)
                if want[1] is not None:
                    torch.testing.assert_close(it.full(got[1]), want[1])
    assert not str(it.bill()).strip() or "0 moves" in str(it.bill()), it.bill()


@on_both
def test_nested_sparse_and_quantized_tensors_are_refused_in_words():
    d = it.distribute(torch.ones(4, 5, 8), "S(0)")
    mask = it.distribute(torch.ones(4, 5, dtype=torch.bool), "S(0)")
    refuses(
        NotImplementedError, "enable_nested_tensor=False", lambda: torch._nested_tensor_from_mask(d, mask, mask_check=False)
    )
    nested = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)])
    refuses(NotImplementedError, "a nested tensor is beside distributed ones: f32[4@dp, 5, 8]", lambda: nested + d)
    matrix = it.distribute(torch.ones(4, 5), "S(0)")
    for sparse in (torch.eye(4).to_sparse(), torch.eye(4).to_sparse_csr()):
        refuses(NotImplementedError, "take its to_dense()", lambda sparse=sparse: sparse @ matrix)
        refuses(NotImplementedError, "take its to_dense()", lambda sparse=sparse: sparse * matrix[:, :4])
    quantized = torch.quantize_per_tensor(torch.ones(4, 5), 0.1, 0, torch.qint8)
    refuses(NotImplementedError, "take its dequantize()", lambda: quantized + matrix)
    table = nn.Embedding(5, 4, sparse=True)
    it.parallelize(table, it.mesh(), {})
    rows = it.distribute(torch.arange(4), "S(0)")
    refuses(NotImplementedError, "a sparse tensor has no layout", lambda: table(rows).sum().backward())


# ---- packed sequences ------------------------------------------------------------------------


@on_both
def test_packed_sequences():
    x, lengths = numbers(4, 5, 6), torch.tensor([3, 5, 1, 4])

    def outputs(module, batch, lengths):
        batch.requires_grad_()
        packed = rnn.pack_padded_sequence(batch, lengths, batch_first=True, enforce_sorted=False)
        out, hidden = module(packed)
        padded, counts = rnn.pad_packed_sequence(out, batch_first=True)
        hidden = hidden if isinstance(hidden, tuple) else (hidden,)
        (padded.square().sum() + sum(h.sum() for h in hidden)).backward()
        return [padded, *hidden, counts, batch.grad, *(p.grad for p in module.parameters())]

    for kind, options in ((nn.LSTM, {"bidirectional": True}), (nn.GRU, {"num_layers": 2}), (nn.RNN, {})):
        torch.manual_seed(0)
        plain = kind(6, 3, batch_first=True, **options).double()
        model = copy.deepcopy(plain)
        it.parallelize(model, it.mesh(), {})
        want = outputs(plain, x.clone(), lengths)
        for given in (lengths, it.distribute(lengths, "R")):
            for p in model.parameters():
                p.grad = None
            for one, other in zip(outputs(model, it.distribute(x, "S(0)"), given), want, strict=True):
                torch.testing.assert_close(it.full(one) if it.has_layout(one) else one, other)


# ---- small things ----------------------------------------------------------------------------


@on_both
def test_pools_without_gradients_and_in_channels_last():
    x = numbers(4, 6, 8)
    image = numbers(4, 3, 6, 6).to(memory_format=torch.channels_last)
    d, e = it.distribute(x, "S(0)"), it.distribute(image, "S(0)")
    assert e.is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        torch.testing.assert_close(it.full(F.max_pool1d(d, 3, 2, 1)), F.max_pool1d(x, 3, 2, 1))
    for size in (1, 2, (3, 2)):
        got, want = F.adaptive_avg_pool2d(e, size), F.adaptive_avg_pool2d(image, size)
        assert it.layout_of(got) == it.layout_of(e) and got.stride() == want.stride()
        torch.testing.assert_close(it.full(got), want)
    got = F.adaptive_avg_pool2d(e, 1)
    refuses(ValueError, "the view would have to move elements", lambda: got.as_strided_((3, 4), (1, 3)))


@on_both
def test_new_tensors_and_initialisers():
    d = it.distribute(numbers(4, 3), "S(0)")
    for data in (1.5, [1, 2], torch.tensor([1, 2]), it.distribute(torch.tensor([3, 4]), "R")):
        made = d.new_tensor(data)
        assert made.dtype == torch.float64 and it.layout_of(made).is_replicated()
    assert d.new_tensor(2, dtype=torch.long, device="cpu", requires_grad=False).item() == 2
    assert torch.ones(2).new_tensor([1, 2]).tolist() == [1.0, 2.0]
    torch.manual_seed(1)
    assert it.full(nn.init.trunc_normal_(d)).abs().max() <= 2
    assert it.full(nn.init.trunc_normal_(d, mean=1.0, a=0.9, b=1.0)).min() >= 0.9  # its other branch


@on_both
def test_tensors_without_elements():
    d = it.distribute(torch.zeros(4, 0, 2, 2), "S(0)")
    assert F.pixel_unshuffle(d, 2).shape == F.pixel_unshuffle(torch.zeros(4, 0, 2, 2), 2).shape
    x = it.distribute(torch.ones(4, 2), "S(0)")
    legacy = it.distribute(torch.zeros(0), "S(0)").requires_grad_()
    for parts in ([legacy, x], [x, torch.zeros(0)], [x, x.new_zeros(0), x]):
        for dim in (0, 1):
            plain = [it.full(p.detach()) if it.has_layout(p) else p for p in parts]
            torch.testing.assert_close(it.full(torch.cat(parts, dim).detach()), torch.cat(plain, dim))
    torch.cat([legacy, x]).sum().backward()
    assert legacy.grad.shape == (0,)


if __name__ == "__main__":
    run(globals())
