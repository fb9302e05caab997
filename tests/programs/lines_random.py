"""Kinds of lines that draw random numbers, from the default generator or from `own`."""

from draft import F64, Unfit, kind


def source(d):
    """The end of a call that may name its generator."""
    return ", generator=own" if d.random == "own" else ""


@kind(4, random=True)
def drawn(d):
    x = d.real()
    probabilities = f"{x}.detach().sigmoid()"
    rates = f"({x}.detach().abs() + 0.5)"
    own = source(d)
    forms = [
        f"torch.bernoulli({probabilities}{own})",
        f"torch.poisson({rates}{own})",
        f"torch.normal({x}.detach(), {rates}{own})",
        f"torch.normal({x}.detach(), 2.{own})",
        f"torch.normal(0.5, {rates}{own})",
        f"torch.multinomial({rates}, 1{own})",
        f"torch.multinomial({rates}, 3, replacement=True{own})",
        f"torch.binomial({rates}.round() + 4, {probabilities}{own})",
        f"torch._standard_gamma({rates}{own})",
    ]
    if d.random == "default":
        forms += [
            f"nn.dropout({x}, 0.5)", f"nn.dropout({x}, 0.5)", f"torch.rand_like({x})", f"torch.randn_like({x})",
            f"torch.randint_like({x}, 5)", f"nn.alpha_dropout({x}, 0.5, training=True)",
            f"nn.rrelu({x}, training=True)", f"nn.gumbel_softmax({x}.reshape(-1))",
            f"torch._sample_dirichlet({rates}.reshape(-1))", f"nn.dropout({x}.mT, 0.3)",
            f"torch.randn_like({x}, dtype=torch.float32)", f"nn.feature_alpha_dropout({x}, 0.5, training=True)",
            f"nn.dropout2d({x}, 0.5)", f"nn.dropout1d({x}, 0.5)", f"torch.native_dropout({x}, 0.5, True)[0]",
            f"nn.scaled_dot_product_attention({x}, {x}, {x}, dropout_p=0.4)",
            f"torch.rand_like({x}.expand(2, *{x}.shape))",
        ]  # fmt: skip
    return f"{d.new()} = {d.one(*forms)}"


FILLS = [
    "normal_(0., 1.{})", "uniform_(0., 1.{})", "bernoulli_(0.5{})", "exponential_(1.{})", "cauchy_(0., 1.{})",
    "geometric_(0.4{})", "log_normal_(1., 2.{})", "random_(0, 7{})",
]  # fmt: skip


@kind(3, random=True)
def filled(d):
    x = d.writable(lambda t: t.dtype == F64)
    t = d.at(x)
    view = d.one("", "", ".t()", ".reshape(-1)", "[..., ::2]", "[..., :1]", ".select(0, 0)" if t.dim() else "")
    return f"{x}{view}.{d.one(*FILLS).format(source(d))}"


@kind(1, random=True)
def random_recomputed(d):
    if d.random != "default":
        raise Unfit
    return f"{d.new()} = recompute(lambda q: nn.dropout(q, 0.5) * q, {d.real(1)})"


@kind(0.7, random=True)
def initialised(d):
    x = d.writable(lambda t: t.dim() >= 2 and t.numel() > 0)
    name = d.one("kaiming_uniform_", "xavier_normal_", "orthogonal_", "trunc_normal_", "uniform_", "normal_")
    return f"torch.nn.init.{name}({x}" + source(d) + ")"
