"""Attention over sharded sequences, from Python: torch's own function, masks, orders, labels and a user's kernel."""

import importlib.util
import math

import intarsia as it
import torch
import torch.nn.functional as F
from _harness import on_ranks, refuses, run

SIZES = (2, 4, 24, 8)


def inputs(seed=0, sizes=SIZES, dtype=torch.float64):
    torch.manual_seed(seed)
    return [torch.randn(sizes, dtype=dtype) for _ in range(3)]


def laid_out(tensors, layout="S(2)", order=None):
    tensors = tensors if order is None else [it.in_order(t, order, 2) for t in tensors]
    return [it.distribute(t, layout).requires_grad_() for t in tensors]


def same(got, want, order=None):
    whole = it.full(got.detach())
    torch.testing.assert_close(it.in_positions(whole, order, 2) if order else whole, want.detach())


def check_against(plain_attention, attention, order=None):
    """Output and gradients of attention on shards are those on plain tensors."""
    plain = [t.requires_grad_() for t in inputs()]
    ours = laid_out([t.detach() for t in plain], order=order)
    want, got = plain_attention(*plain), attention(*ours)
    want.square().sum().backward()
    got.square().sum().backward()
    same(got, want, order)
    for mine, theirs in zip(ours, plain, strict=True):
        same(mine.grad, theirs.grad, order)


@on_ranks(2)
def test_torchs_function_works_on_a_sharded_sequence():
    it.init("[cp=2]")
    for causal in (False, True):
        check_against(*2 * [lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)])
    q, k, v = laid_out(inputs())
    assert "S(2)" in str(it.layout_of(F.scaled_dot_product_attention(q, k, v)))


@on_ranks(2)
def test_a_mask_tensor_is_recognised_or_refused():
    it.init("[cp=2]")
    n = SIZES[2]
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    assert str(it.AttentionMask.of(causal)) == "causal"
    assert str(it.AttentionMask.of(torch.zeros(n, n).masked_fill(~causal, -math.inf))) == "causal"
    window = causal & ~causal.tril(-5)
    assert str(it.AttentionMask.of(window)) == "window(4,0)"
    check_against(*2 * [lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=window)])
    padded = causal.expand(2, 1, n, n).clone()
    padded[1, :, :, 20:] = False
    check_against(*2 * [lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=padded)])
    q, k, v = laid_out(inputs())
    refuses(ValueError, "neither 0 nor -inf", lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.rand(n, n)))


@on_ranks(2)
def test_masks_orders_and_schedules():
    it.init("[cp=2]")
    n = SIZES[2]
    starts = [0, 5, 17]
    seen = torch.zeros(n, n, dtype=torch.bool)
    for start, end in zip(starts, [*starts[1:], n], strict=True):
        seen[start:end, start:end] = True
    seen &= torch.ones(n, n, dtype=torch.bool).tril()
    lengths = it.shard_lengths(n, 2)
    mask = it.AttentionMask.causal().documents(starts)
    orders = [
        None,
        it.SequenceOrder.head_tail(lengths),
        it.SequenceOrder.head_tail(lengths, starts),
        it.SequenceOrder.balanced(lengths, mask),
    ]
    for order in orders:
        for schedule in ("gather", "ring", "heads", "auto"):
            check_against(
                lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=seen),
                lambda q, k, v: it.attention(q, k, v, mask, order=order, schedule=schedule),  # noqa: B023
                order,
            )
    with it.attention_scope("causal+documents(0,5,17)", schedule="ring"):
        check_against(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=seen),
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        )


@on_ranks(2)
def test_a_users_kernel():
    """The schedules run any op that gives an output and a logsumexp."""
    it.init("[cp=2]")
    calls = []

    def scores(block):
        out = block.query @ block.key.mT * block.scale
        if block.causal:
            out = out.masked_fill(torch.ones(out.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        return out if block.bias is None else out + block.bias

    def forward(block):
        calls.append("forward")
        s = scores(block)
        return s.softmax(-1).nan_to_num(0) @ block.value, s.logsumexp(-1)

    def backward(block, grad, out, logsumexp):
        calls.append("backward")
        p = (scores(block) - logsumexp.unsqueeze(-1)).exp()
        ds = p * (grad @ block.value.mT - (grad * out).sum(-1, keepdim=True)) * block.scale
        return ds @ block.key, ds.mT @ block.query, p.mT @ grad

    check_against(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: it.attention(q, k, v, "causal", schedule="ring", kernel=(forward, backward)),
    )
    assert set(calls) == {"forward", "backward"}


@on_ranks(2)
def test_labels_are_shifted_before_they_are_sharded():
    it.init("[cp=2]")
    tokens = torch.arange(12).reshape(2, 6)
    labels = it.next_tokens(tokens, [0, 4])
    assert labels[0].tolist() == [1, 2, 3, -100, 5, -100]
    # Shifted on pieces, the last position of the first shard lacks the first token of the second.
    piece = it.local(it.distribute(tokens, "S(1)"))
    naive = torch.cat([piece[:, 1:], torch.full_like(piece[:, :1], -100)], 1)
    right = it.local(it.distribute(it.next_tokens(tokens), "S(1)"))
    if it.world().rank() == 0:
        assert naive[0].tolist() == [1, 2, -100]
        assert right[0].tolist() == [1, 2, 3]
    refuses(ValueError, "call it on what is not sharded there", lambda: it.next_tokens(it.distribute(tokens, "S(1)")))


@on_ranks(2)
def test_a_rank_without_targets_has_its_part_of_the_gradient():
    """All targets are on one rank: the loss is that of one process, not 0/0, and every weight has its gradient."""
    it.init("[cp=2]")
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 10).double()
    hidden, labels = torch.randn(1, 8, 8, dtype=torch.float64), torch.randint(0, 10, (1, 8))
    labels[:, 4:] = -100
    want = F.cross_entropy(head(hidden).flatten(0, 1), labels.flatten())
    (want_grad,) = torch.autograd.grad(want, head.weight)
    weight = it.distribute(head.weight.detach(), "R").requires_grad_()
    bias = it.distribute(head.bias.detach(), "R").requires_grad_()
    logits = F.linear(it.distribute(hidden, "S(1)"), weight, bias)
    got = F.cross_entropy(logits.flatten(0, 1), it.distribute(labels, "S(1)").flatten())
    got.backward()
    torch.testing.assert_close(it.full(got.detach()), want.detach())
    torch.testing.assert_close(it.full(weight.grad), want_grad)
    # The naive way: the mean of the ranks' means. The second rank's is 0/0.
    local = F.cross_entropy(it.local(logits.detach()).flatten(0, 1), it.local(it.distribute(labels, "S(1)")).flatten())
    assert local.isnan() == (it.world().rank() == 1)


@on_ranks(2)
def test_what_does_not_go_together_is_said_first():
    it.init("[cp=2]")
    q, k, v = laid_out(inputs(sizes=(1, 3, 8, 4)))
    refuses(ValueError, "3 heads over 2 ranks", lambda: it.attention(q, k, v, "causal", schedule="heads"))
    refuses(ValueError, "rings", lambda: it.attention(q, k, v, "causal", schedule="rings"))
    refuses(ValueError, "casual", lambda: it.attention(q, k, v, "casual"))
    refuses(ValueError, "tp", lambda: it.attention(q, k, v, "causal", schedule="ring+heads(tp)"))
    refuses(ValueError, "no multiple", lambda: it.attention(q, k[:, :2], v[:, :2]))
    short = it.SequenceOrder.head_tail(it.shard_lengths(6, 2))
    refuses(ValueError, "6 positions, and the sequence has 8", lambda: it.attention(q, k, v, order=short))
    out = it.attention(q, k, v)
    refuses(NotImplementedError, "differentiable once", lambda: torch.autograd.grad(out.sum(), q, create_graph=True))


@on_ranks(2)
def test_the_llama_of_transformers_as_it_stands():
    if importlib.util.find_spec("transformers") is None:
        return
    from transformers import LlamaConfig, LlamaForCausalLM

    it.init("[cp=2]")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=65, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48
    )
    model = LlamaForCausalLM(config).double()
    tokens = torch.randint(0, 65, (2, 16))
    want = model(input_ids=tokens).logits
    F.cross_entropy(want.flatten(0, 1), it.next_tokens(tokens).flatten()).backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    it.parallelize(model, it.mesh(), {})
    for schedule in ("ring", "gather"):
        with it.attention_scope("causal", schedule=schedule):
            got = model(input_ids=it.distribute(tokens, "S(1)")).logits
        assert "S(1)" in str(it.layout_of(got)), it.describe(got)
        labels = it.distribute(it.next_tokens(tokens), "S(1)")
        F.cross_entropy(got.flatten(0, 1), labels.flatten()).backward()
        torch.testing.assert_close(it.full(got.detach()), want.detach())
        for name, p in model.named_parameters():
            torch.testing.assert_close(it.full(p.grad), grads[name], msg=name)
        model.zero_grad()


@on_ranks(2)
def test_latent_attention_sends_latents():
    """Queries are multiplied into the latent space; all heads share one key, whose first numbers are the value."""
    it.init("[cp=2]")
    latent, rotary, heads = 6, 2, 4
    q = torch.randn(1, heads, 16, latent + rotary, dtype=torch.float64).requires_grad_()
    c = torch.randn(1, 1, 16, latent + rotary, dtype=torch.float64).requires_grad_()
    want = F.scaled_dot_product_attention(q, c.expand(-1, heads, -1, -1), c[..., :latent].expand(-1, heads, -1, -1), is_causal=True)
    want.square().sum().backward()
    for schedule in ("ring", "gather"):
        ours, latents = laid_out([q.detach(), c.detach()])
        it.clear_bill()
        got = it.attention(ours, latents, None, "causal", schedule=schedule, value_in_key=latent)
        piece = 8 * (latent + rotary) * 8  # 8 latents in float64; under a causal mask the first rank's are all that is needed
        assert it.bill().bytes() == (piece if schedule == "ring" or it.world().rank() == 0 else 0), it.bill()
        got.square().sum().backward()
        same(got, want)
        same(ours.grad, q.grad)
        same(latents.grad, c.grad)
    refuses(ValueError, "value_in_key is 9", lambda: it.attention(ours, latents, None, value_in_key=9))


@on_ranks(2)
def test_mask_functions_become_descriptions():
    it.init("[cp=2]")
    n = 24

    def window(b, h, q, k):
        return (q >= k) & (q - k < 5)

    assert str(it.AttentionMask.of_function(window, n, n)) == "window(4,0)"
    odd = it.AttentionMask.of_function(lambda b, h, q, k: (q >= k) & ((q + k) % 3 != 1), n, n, samples=2)
    assert it.AttentionMask.parse(str(odd)) == odd
    dense = torch.tensor([[odd.sees(0, q, k) for k in range(n)] for q in range(n)])
    check_against(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=dense),
        lambda q, k, v: it.attention(q, k, v, odd, schedule="ring"),
    )
    refuses(ValueError, "other heads", lambda: it.AttentionMask.of_function(lambda b, h, q, k: q >= k + h, n, n, heads=2))
    refuses(ValueError, "gives bool", lambda: it.AttentionMask.of_function(lambda b, h, q, k: q - k, n, n))


@on_ranks(2)
def test_a_mask_as_a_tensor_goes_where_masks_go():
    """Checkpointing calls a function again in backward, where no scope is: its mask is in what it was called with."""
    it.init("[cp=2]")
    from torch.utils.checkpoint import checkpoint

    mask = it.mask_tensor("causal+documents(0,5,17)")

    def block(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    for reentrant in (True, False):
        check_against(
            lambda q, k, v: it.attention(q, k, v, "causal+documents(0,5,17)"),
            lambda q, k, v: checkpoint(block, q, k, v, mask, use_reentrant=reentrant),  # noqa: B023
        )

    def in_scope():
        q, k, v = laid_out(inputs())
        with it.attention_scope("causal+documents(0,5,17)"):
            out = checkpoint(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), q, k, v, use_reentrant=False)
        out.sum().backward()

    refuses(ValueError, "no scope says its mask", in_scope)


@on_ranks(2)
def test_an_order_is_not_taken_for_a_contiguous_sequence():
    it.init("[cp=2]")
    n = 16
    order = it.SequenceOrder.head_tail(it.shard_lengths(n, 2))
    x = it.distribute(it.in_order(torch.randn(2, n, 4), order, 1), "S(1)")
    with it.attention_scope("causal", order=order):
        x * torch.randn(4)  # no positions
        x * it.distribute(it.in_order(torch.randn(n, 1), order, 0), "S(0)")
        x.sum(1), x.softmax(-1), x[..., :2], x.flatten(0, 1)
        refuses(ValueError, "nothing says in which order", lambda: x * torch.arange(n).unsqueeze(1))
        refuses(ValueError, "next_tokens", lambda: x[:, 1:])
        refuses(ValueError, "takes neighbours", lambda: x[:, -1])
        refuses(ValueError, "takes neighbours", lambda: x.cumsum(1))
        refuses(ValueError, "takes neighbours", lambda: x.roll(1, 1))
        refuses(ValueError, "takes neighbours", lambda: F.pad(x, (0, 0, 1, 0)))
        refuses(ValueError, "takes neighbours", lambda: F.conv1d(x.transpose(1, 2), it.distribute(torch.randn(4, 4, 3), "R"), padding=1))
    x[:, 1:], x.cumsum(1)  # outside, nobody knows of an order


def llama(**options):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {
        "vocab_size": 65, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, **options,
    }  # fmt: skip
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**config)).double()


def plain_llama(tokens, **options):
    """The loss and the gradients on one device."""
    model = llama(**options)
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters()}


def check_llama(model, loss, wanted):
    want, grads = wanted
    loss.backward()
    torch.testing.assert_close(it.full(loss.detach()), want)
    for name, p in model.named_parameters():
        torch.testing.assert_close(it.full(p.grad), grads[name], msg=name)
    model.zero_grad()


@on_ranks(2)
def test_context_parallel_models_of_transformers():
    """Positions that the model makes, labels that it shifts, its masks, checkpointing: as on one device in every order."""
    if importlib.util.find_spec("transformers") is None:
        return
    it.init("[cp=2]")
    torch.manual_seed(1)
    tokens = torch.randint(0, 65, (2, 18))
    wanted = plain_llama(tokens)
    for attention in ("sdpa", it.register_hugging_face_attention()):
        for order in ("contiguous", "head_tail", "balanced"):
            for again in (False, True):
                model = llama(attn_implementation=attention)
                it.parallelize(model, it.mesh(), {})
                if again:
                    model.gradient_checkpointing_enable()
                    model.train()
                it.context_parallel(model, order=order)
                check_llama(model, model(input_ids=tokens, labels=tokens, use_cache=False).loss, wanted)


@on_ranks(2)
def test_positions_that_a_model_makes_are_refused_in_an_order():
    if importlib.util.find_spec("transformers") is None:
        return
    it.init("[cp=2]")
    model = llama()
    it.parallelize(model, it.mesh(), {})
    tokens = torch.randint(0, 65, (1, 16))
    order = it.SequenceOrder.head_tail(it.shard_lengths(16, 2))
    stored = it.distribute(it.in_order(tokens, order, 1), "S(1)")
    with it.attention_scope("causal", order=order):
        refuses(ValueError, "position_ids", lambda: model(input_ids=stored))


@on_ranks(2)
def test_windows_and_padding_of_transformers():
    if importlib.util.find_spec("transformers") is None:
        return
    from transformers import MistralConfig, MistralForCausalLM

    it.init("[cp=2]")
    name = it.register_hugging_face_attention()

    def mistral(attention):
        torch.manual_seed(0)
        config = MistralConfig(
            vocab_size=65, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
            sliding_window=5, attn_implementation=attention,
        )  # fmt: skip
        return MistralForCausalLM(config).double().eval()

    torch.manual_seed(1)
    tokens = torch.randint(0, 65, (2, 18))
    padding = torch.ones(2, 18, dtype=torch.long)
    padding[1, 13:] = 0
    for mask in (None, padding):
        want = mistral("sdpa")(input_ids=tokens, attention_mask=mask).logits.detach()
        model = mistral(name)
        it.parallelize(model, it.mesh(), {})
        laid_out_mask = None if mask is None else it.distribute(mask, "S(1)")
        got = it.full(model(input_ids=it.distribute(tokens, "S(1)"), attention_mask=laid_out_mask).logits.detach())
        real = padding.bool() if mask is not None else torch.ones(2, 18, dtype=torch.bool)
        torch.testing.assert_close(got[real], want[real])
    model = llama()
    it.parallelize(model, it.mesh(), {})
    it.context_parallel(model)
    want = llama()(input_ids=tokens, attention_mask=padding).logits.detach()
    got = it.full(model(input_ids=tokens, attention_mask=padding).logits.detach())
    torch.testing.assert_close(got[padding.bool()], want[padding.bool()])


@on_ranks(2)
def test_modules_of_ones_own_and_data_parallel_rows():
    it.init("[dp=1,cp=2]")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(20, 8)
            self.qkv = torch.nn.Linear(8, 24)

        def forward(self, tokens, scale=1.0):
            q, k, v = self.qkv(self.embed(tokens)).view(*tokens.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True) * scale

    torch.manual_seed(0)
    model = Model().double()
    tokens = torch.randint(0, 20, (2, 12))
    want = model(tokens, 2.0)
    it.parallelize(model, it.mesh(), {})
    handle = it.context_parallel(model, inputs={"tokens": 1}, order="head_tail")
    order = handle.order_of(12)
    torch.testing.assert_close(it.in_positions(it.full(model(tokens, 2.0).detach()), order, 2), want.detach())
    rows = it.distribute(tokens, "S(0),R")
    out = model(rows, scale=2.0)
    assert it.describe(out) == "f64[2@dp, 2, 12@cp, 4] on [dp=1,cp=2]", it.describe(out)
    torch.testing.assert_close(it.in_positions(it.full(out.detach()), order, 2), want.detach())
    refuses(ValueError, "replicated along cp", lambda: model(it.distribute(tokens, "R,S(1)")))
    handle.remove()
    other = it.context_parallel(model)
    refuses(ValueError, "inputs={'tokens': 1}", lambda: model(tokens))
    other.remove()
    refuses(ValueError, "contiguous, head_tail", lambda: it.context_parallel(model, order="zigzag", inputs={"tokens": 1}).order_of(8))


@on_ranks(4)
def test_packed_samples_of_different_lengths():
    """Spread over data x context ranks: the loss of all targets, and its gradients, are those sample by sample."""
    it.init("[dp=2,cp=2]")
    torch.manual_seed(0)
    embed, qkv, head = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 24), torch.nn.Linear(8, 20)
    model = torch.nn.ModuleList([embed, qkv, head]).double()
    samples = [torch.randint(0, 20, (n,)) for n in (3, 50, 7, 1, 12, 20, 9, 2)]

    def logits(tokens, attend):
        q, k, v = model[1](model[0](tokens)).view(*tokens.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return model[2](attend(q, k, v).transpose(1, 2).flatten(2))

    targets = sum(len(s) - 1 for s in samples)
    want = 0
    for s in samples:
        if len(s) > 1:
            out = logits(s.unsqueeze(0), lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
            want = want + F.cross_entropy(out[0, :-1], s[1:], reduction="sum") / targets
    want.backward()
    grads = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    it.parallelize(model, it.mesh(), {})
    got = 0
    packings = it.pack([len(s) for s in samples], ranks=4, tokens=16)
    assert len(packings) == 2
    for p in packings:
        tokens = it.packed(p, samples)
        labels = it.packed_labels(p, tokens)
        stored, wanted = (it.distribute(it.in_order(t, p.order, 1), "S(1),S(1)") for t in (tokens, labels))
        out = logits(stored, lambda q, k, v: it.attention(q, k, v, p.mask(), order=p.order))  # noqa: B023
        loss = F.cross_entropy(out.flatten(0, 1), wanted.flatten(), reduction="sum", ignore_index=-100) / targets
        loss.backward()
        got += it.full(loss.detach())
    torch.testing.assert_close(got, want.detach())
    for name, p in model.named_parameters():
        torch.testing.assert_close(it.full(p.grad), grads[name], msg=name)


def decayed():
    """Linear attention with a decay for each head, by powers of it."""

    def powers(decay, n):
        t = torch.arange(1, n + 1, dtype=decay.dtype)
        between = decay.view(-1, 1, 1) ** (t.unsqueeze(1) - t).clamp(min=0) * (t.unsqueeze(1) >= t)
        return decay.view(-1, 1) ** t, between

    def summary(along, others):
        q, k, v = along
        upto, between = powers(others[0], q.size(2))
        return [upto[:, -1].view(-1, 1, 1), (k * between[:, -1].unsqueeze(-1)).mT @ v], [upto, between]

    def combine(before, after):
        return [before[0] * after[0], after[0] * before[1] + after[1]]

    def outputs(along, others, kept, before):
        q, k, v = along
        upto, between = kept
        out = (q @ k.mT * between) @ v
        return [out if before is None else out + upto.unsqueeze(-1) * (q @ before[1])]

    return it.ScanLayer(summary, combine, outputs)


@on_ranks(2)
def test_scans_from_python():
    it.init("[cp=2]")
    layer = decayed()
    q, k, v = (t.requires_grad_() for t in inputs())
    decay = torch.linspace(0.5, 0.95, 4, dtype=torch.float64).requires_grad_()
    (want,) = it.scan(layer, [q, k, v], [decay], dim=2)  # plain tensors: one run
    want.square().sum().backward()
    n = SIZES[2]
    order = it.SequenceOrder.head_tail(it.shard_lengths(n, 2))
    for schedule, stored in (("gather", None), ("doubling", None), ("auto", order)):
        ours = laid_out([t.detach() for t in (q, k, v)], order=stored)
        our_decay = it.distribute(decay.detach(), "R").requires_grad_()
        (got,) = it.scan(layer, ours, [our_decay], dim=2, schedule=schedule, order=stored)
        got.square().sum().backward()
        same(got, want, stored)
        torch.testing.assert_close(it.full(our_decay.grad), decay.grad)
        for mine, theirs in zip(ours, (q, k, v), strict=True):
            same(mine.grad, theirs.grad, stored)
    x, a = laid_out([torch.randn(2, 24, 3)], "S(1)")[0], it.distribute(torch.rand(2, 24, 1), "S(1)")
    h = it.linear_recurrence(a, x)
    step = [torch.zeros(2, 3)]
    full_x, full_a = it.full(x.detach()), it.full(a)
    for t in range(24):
        step.append(full_a[:, t] * step[-1] + full_x[:, t])
    torch.testing.assert_close(it.full(h.detach()), torch.stack(step[1:], 1))


@on_ranks(2)
def test_scans_that_would_lose_a_gradient_are_refused():
    it.init("[cp=2]")
    gain = torch.ones(3, requires_grad=True)
    laid_out_gain = it.distribute(torch.ones(3), "R").requires_grad_()

    def layer(used):
        return it.ScanLayer(
            lambda along, others: ([along[0].sum(1, keepdim=True)], []),
            lambda before, after: [before[0] + after[0]],
            lambda along, others, kept, before: [along[0] * (others[0] if others else used)],
        )

    (x,) = laid_out([torch.randn(2, 6, 3)], "S(1)")
    refuses(ValueError, "one of `others`", lambda: it.scan(layer(gain), [x]))
    refuses(ValueError, "`others`", lambda: it.scan(layer(laid_out_gain), [x]))
    it.scan(layer(gain.detach()), [x])
    it.scan(layer(None), [x], [laid_out_gain])
    plain = it.ScanLayer(*layer(gain.detach())[:2], lambda *_: [torch.zeros(2, 5, 3)])
    refuses(ValueError, "for a run of 3 positions", lambda: it.scan(plain, [x]))
    refuses(ValueError, "auto, gather and doubling", lambda: it.scan(layer(1.0), [x], schedule="chain"))
    refuses(ValueError, "has another size", lambda: it.scan(layer(1.0), [x, x[:, :4]]))
    refuses(NotImplementedError, "differentiable once", lambda: torch.autograd.grad(it.scan(layer(1.0), [x])[0].sum(), x, create_graph=True))


@on_ranks(2)
def test_ranks_that_mean_different_masks_are_named():
    """The last of this file: afterwards the ranks do not go on together."""
    it.init("[cp=2]")
    q, k, v = laid_out(inputs())
    mask = "causal" if it.world().rank() == 0 else "window(3,0)"

    def step():
        out = it.attention(q, k, v, mask, schedule="ring")
        return it.full(out).sum().item()

    refuses(it.WorldError, "the mask, order, scale, dropout and schedule", step)


if __name__ == "__main__":
    run(globals())
