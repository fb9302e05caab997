"""Kinds of lines that compute: elementwise, products, reductions, indexing, networks."""

from draft import Unfit, kind
import torch

UNARY = (
    "sin cos tanh abs neg sigmoid relu square sign erf atan floor frac nan_to_num exp2().clamp(max=9) "
    "sinh().clamp(-3,3) ceil round trunc asinh expm1().clamp(max=9) rsqrt().nan_to_num(0,0,0) positive "
    "logical_not isnan signbit"
).split()
ACTIVATIONS = (
    "gelu silu softplus elu leaky_relu hardtanh logsigmoid selu mish hardswish softsign tanhshrink celu relu6"
).split()
BINARY = [
    "{} + {}", "{} - {}", "{} * {}", "torch.maximum({}, {})", "torch.minimum({}, {})", "{} / ({}.abs() + 1)",
    "torch.atan2({}, {} + 3)", "torch.hypot({}, {} + 3)", "torch.add({}, {}, alpha=2)", "torch.lerp({}, {}, 0.3)",
    "torch.fmod({}, {}.abs() + 1)", "torch.where({} > 0, {}, 0.5)", "torch.logaddexp({}, {})", "{} > {}",
    "torch.copysign({}, {} + 3)",
]  # fmt: skip


@kind(2)
def unary(d):
    name = d.one(*UNARY)
    return f"{d.new()} = {d.real()}.{name}" + ("" if name.endswith(")") else "()")


@kind()
def activation(d):
    return f"{d.new()} = nn.{d.one(*ACTIVATIONS)}({d.real()})"


@kind(3)
def binary(d):
    x = d.real()
    return f"{d.new()} = " + d.one(*BINARY).format(x, d.broadcast_with(d.at(x)))


@kind()
def with_number(d):
    forms = ["{} * {}", "{} + {}", "{} - {}", "{} / {}", "{1} - {0}", "{1} / ({0}.abs() + 1)", "{} ** 2", "({} > {})"]
    return f"{d.new()} = " + d.one(*forms).format(d.real(), d.number())


@kind()
def ternary(d):
    x = d.real()
    form = d.one(
        "torch.addcmul({}, {}, {}, value=0.5)",
        "torch.where({} > 0, {}, {})",
        "torch.lerp({}, {}, {})",
        "torch.addcdiv({}, {}, {}.abs() + 1)",
    )
    return f"{d.new()} = " + form.format(x, d.like(d.at(x)), d.like(d.at(x)))


# ---- products ----------------------------------------------------------------------------------


@kind(2)
def matmul(d):
    x = d.real(1)
    inner = d.at(x).shape[-1]
    y = d.real(1, 4, lambda t: t.shape[-2 if t.dim() > 1 else 0] == inner)
    return f"{d.new()} = torch.matmul({x}, {y})"


@kind(2)
def linear(d):
    x = d.real(2)
    y = d.real(2, 2, lambda t: t.shape[-1] == d.at(x).shape[-1])
    form = d.one("{} @ {}.t()", "nn.linear({}, {})", "nn.linear({}, {}, weight(%d))" % d.at(y).shape[0])
    return f"{d.new()} = " + form.format(x, y)


@kind()
def einsum(d):
    x = d.real(2, 3)
    sizes = d.at(x).shape
    y = d.real(2, 2, lambda t: t.shape[0] in sizes)
    letters = "ijk"[: len(sizes)]
    shared = d.one(*[letters[i] for i, size in enumerate(sizes) if size == d.at(y).shape[0]])
    kept = [letter for letter in d.chance.sample(letters + "m", len(letters) + 1) if d.often(0.75)]
    return f"{d.new()} = torch.einsum('{letters},{shared}m->{''.join(kept)}', {x}, {y})"


@kind()
def outer(d):
    x, y = d.real(1, 1), d.real(1, 1)
    if d.often(0.3):  # of copies: torch itself does not notice when an operand of kron is written before backward
        return f"{d.new()} = torch.kron({x}.clone(), {y}.clone())"
    return f"{d.new()} = torch.outer({x}, {y})"


@kind()
def addmm(d):
    x = d.real(2, 2)
    y = d.real(2, 2, lambda t: t.shape[0] == d.at(x).shape[1])
    sizes = torch.Size([d.at(x).shape[0], d.at(y).shape[1]])
    bias = d.real(0, 2, lambda t: t.dim() == 0 or torch.broadcast_shapes(t.shape[-1:], sizes[-1:]) == sizes[-1:])
    return f"{d.new()} = torch.addmm({bias}, {x}, {y}, beta={d.number()}, alpha={d.number()})"


# ---- reductions ----------------------------------------------------------------------------------


@kind(2)
def reduction(d):
    x = d.real()
    name = d.one("sum", "mean", "amax", "amin", "logsumexp", "var", "std", "prod", "nansum", "any", "count_nonzero")
    t = d.at(x)
    if t.dim() == 0 or d.often(0.2):
        return f"{d.new()} = {x}.{d.one('sum', 'mean', 'prod', 'norm', 'amax', 'var', 'any')}()"
    keep, dim = d.one(True, False), d.dim(t)
    if name in ("any", "count_nonzero"):
        return f"{d.new()} = ({x} > 0).{name}({dim})"
    if name in ("sum", "mean", "amax", "var", "logsumexp") and t.dim() >= 2 and d.often(0.4):
        dim = d.chance.sample(range(t.dim()), 2)
    return f"{d.new()} = {x}.{name}({dim}, keepdim={keep})"


@kind(1.2)
def norm(d):
    """Norms are partial results of a kind of their own; what is done to them next matters."""
    x = d.real(1)
    order = d.one(1, 2, 2, 3, "inf", 0.5)
    form = d.one(
        f"torch.linalg.vector_norm({x}, {order})",
        f"torch.linalg.vector_norm({x}, {order}, dim={d.dim(d.at(x))}, keepdim={d.one(True, False)})",
        f"{x}.norm()",
        f"{x}.norm({order}, {d.dim(d.at(x))})",
        f"torch._foreach_norm([{x}])[0]",
    )
    if d.often(0.2):  # beside other values, which have a sign
        form = f"torch.cat([({form}).flatten(), {d.real(1)}.flatten()])"
    return f"{d.new()} = {form}"


@kind(1.5)
def along(d):
    x = d.real(1)
    dim = d.dim(d.at(x))
    name = d.one(*"softmax log_softmax cumsum cumprod logcumsumexp softmin normalize diff renorm".split())
    if name in ("softmin", "normalize"):
        return f"{d.new()} = nn.{name}({x}, dim={dim})"
    if name == "renorm":
        return f"{d.new()} = {x}.renorm(2, {dim}, 1.5)"
    return f"{d.new()} = {x}.{name}({f'dim={dim}' if name == 'diff' else dim})"


@kind()
def ordered(d):
    """Ops for which an order among the elements must be sure."""
    x = d.apart()
    t = d.at(x)
    dim = d.dim(t)
    size = t.shape[dim]
    v, i = d.new(), d.new()
    return d.one(
        f"{v}, {i} = {x}.sort({dim}, descending={d.one(True, False)})",
        f"{v}, {i} = {x}.topk({d.chance.randrange(size + 1)}, {dim}, largest={d.one(True, False)})",
        f"{v}, {i} = {x}.kthvalue({d.chance.randrange(1, size + 1)}, {dim})",
        f"{v}, {i} = {x}.max({dim})",
        f"{v}, {i} = {x}.min({dim}, keepdim=True)",
        f"{v}, {i} = {x}.median({dim})",
        f"{v}, {i} = {x}.cummax({dim})",
        f"{v}, {i} = {x}.cummin({dim})",
        f"{v} = {x}.argsort({dim})",
        f"{v} = {x}.argmax({d.one(dim, None)})",
        f"{v} = {x}.argmin({dim}, keepdim=True)",
        f"{v} = {x}.median()",
        f"{v} = {x}.msort()",
        f"{v} = {x}.max()",
        f"{v}, {i} = torch.aminmax({x}, dim={dim})",
    )


# ---- indexing -----------------------------------------------------------------------------------


def positions(d, size, repeated=True):
    if size == 0:
        raise Unfit
    found = [d.chance.randrange(size) for _ in range(d.one(0, 1, 2, 3, 5))]
    return f"torch.tensor({found if repeated else sorted(set(found))}, dtype=torch.long)"


@kind(2)
def lookup(d):
    x = d.value(lambda t: t.dim() >= 1 and min(t.shape) > 0)
    t = d.at(x)
    dim = d.chance.randrange(t.dim())
    size, before = t.shape[dim], ":, " * dim
    where = positions(d, size)
    draw = d.chance.randrange(8)
    if draw == 0:
        return f"{d.new()} = {x}[{before}{where}]"
    if draw == 1:
        return f"{d.new()} = {x}[{before}{where} - {size}]"
    if draw == 2:
        return f"{d.new()} = {x}.index_select({dim}, {where})"
    if draw == 3:
        return f"{d.new()} = {x}.take({where})"
    if draw == 4 and t.dim() >= 2:
        both = [d.chance.randrange(min(t.shape[0], t.shape[-1])) for _ in range(3)]
        return f"{d.new()} = {x}[torch.tensor({both}), ..., torch.tensor({both[::-1]})]"
    index = d.value(lambda u: u.dtype == torch.long and 1 <= u.dim() <= 2)
    if draw == 5:
        return f"{d.new()} = {x}[{before}{index}.remainder({size})]"
    same = d.value(lambda u: u.dtype == torch.long and u.dim() == t.dim())
    if draw == 6:
        return f"{d.new()} = {x}.gather({dim}, {same}.remainder({size}))"
    return f"{d.new()} = torch.take_along_dim({x}, {same}.remainder({size}), {dim})"


@kind()
def masked(d):
    x = d.real(1)
    return f"{d.new()} = " + d.one(
        f"{x}[{x} > 0.1]",
        f"torch.where({x} > 0, {x}, 0.5)",
        f"{x}.masked_fill({x} > 0.3, {d.number()})",
        f"{x}.masked_select({x} < 0)",
        f"{x}[{x}.flatten(1).sum(1) > 0]" if d.at(x).dim() > 1 else f"{x}[{x} < 0]",
        f"({x} > 0).nonzero()",
        f"{x}.masked_scatter({x} > 0, {x} * 2)",
    )


@kind(1.5)
def scatter(d):
    x = d.real(1, 4, lambda t: t.numel() > 0)
    t = d.at(x)
    dim = d.chance.randrange(t.dim())
    size = t.shape[dim]
    names = "index_add index_copy index_fill scatter_add scatter scatter_reduce index_put select slice diagonal"
    name = d.one(*names.split())
    where = positions(d, size, repeated=name in ("index_add", "scatter_add", "scatter_reduce"))
    source = f"{x}.index_select({dim}, {where})"
    if name in ("index_add", "index_copy"):
        return f"{d.new()} = {x}.{name}({dim}, {where}, {source} * 2)"
    if name == "index_fill":
        return f"{d.new()} = {x}.index_fill({dim}, {where}, {d.number()})"
    if name == "index_put":
        rest = f"torch.tensor(1.5, dtype=torch.float64), accumulate={d.one(True, False)}"
        return f"{d.new()} = {x}.index_put(({where} % {t.shape[0]},), {rest})"
    if name == "select":
        one, other = d.chance.randrange(size), d.chance.randrange(size)
        return f"{d.new()} = {x}.select_scatter({x}.select({dim}, {one}).cos(), {dim}, {other})"
    if name == "diagonal":
        return f"{d.new()} = {x}.diagonal_scatter({x}.diagonal(0, 0, 1).cos(), 0, 0, 1)"
    if name == "slice":
        begin = d.chance.randrange(size)
        end = d.chance.randrange(begin, size + 1)
        return f"{d.new()} = {x}.slice_scatter({x}.narrow({dim}, {begin}, {end - begin}).sin(), {dim}, {begin}, {end})"
    sizes = [1] * t.dim()
    sizes[dim] = -1
    index = f"{where}.reshape({sizes}).expand_as({source})"
    how = f", '{d.one('sum', 'amax', 'mean', 'amin')}', include_self={d.one(True, False)}"
    rest = how if name == "scatter_reduce" else ""
    return f"{d.new()} = {x}.{name}({dim}, {index}, {source}.cos(){rest})"


@kind()
def whole_numbers(d):
    x = d.value(lambda t: t.dtype in (torch.long, torch.int32, torch.bool))
    if d.at(x).dtype == torch.bool:
        forms = [".logical_not()", ".any()", ".all()", ".sum()", ".long()", " ^ True", ".cumsum(0)", ".double()"]
    else:
        forms = [
            " + 1", " * 2", " // 2", ".remainder(3)", ".sum()", ".bitwise_and(1)", " % 2 == 0", ".cumsum(0)",
            ".flip(0)", ".max()", ".unique()", ".sort(0).values", " / 2", " << 1", ".clamp(0, 2)", ".prod()", ".amax()",
            ".double()",
        ]  # fmt: skip
    return f"{d.new()} = {x}" + d.one(*forms)


@kind()
def special(d):
    x = d.real(1)
    t = d.at(x)
    matrix = x if t.dim() == 2 else f"{x}.reshape({t.shape[0]}, -1)" if t.numel() else f"{x}.flatten()[None]"
    return f"{d.new()} = " + d.one(
        f"torch.vmap(lambda q: q.sum() * 2 + q.sin().mean())({x})",
        f"torch.cdist({matrix}, {matrix}.cos() + 2)",
        f"torch.meshgrid({x}.flatten(), {d.real(1)}.flatten(), indexing='ij')[0]",
        f"torch.tensordot({matrix}, {matrix}, dims=([0], [0]))",
        f"torch.broadcast_tensors({x}, {x}[..., :1])[1]",
        f"{matrix}.cov()",
        f"nn.cosine_similarity({x}, {x}.cos(), dim=-1)",
        f"torch.trapezoid({x})",
        f"torch.block_diag({matrix}, {matrix})",
        f"{x}.bucketize(torch.tensor([-1., 0., 1.], dtype=torch.float64))",
        f"torch.linalg.norm({x}.flatten())",
        f"nn.pixel_shuffle({x}.reshape(1, -1, 1, 1)[:, :{t.numel() // 4 * 4}], 2)",
        f"torch.corrcoef({matrix}.cos() + torch.arange({t.shape[0]})[:, None])",
        f"torch.linalg.multi_dot([{matrix}, {matrix}.t(), {matrix}])",
        f"{x}.logsumexp(-1)",
        f"torch.gradient({x}.flatten())[0]",
        f"{x}.unique(dim=0)",
    )


# ---- networks -----------------------------------------------------------------------------------


@kind(1.5)
def normalized(d):
    x = d.real(2, 4)
    t = d.at(x)
    groups = d.one(*[n for n in range(1, t.shape[1] + 1) if t.shape[1] % n == 0] or [1])
    last = t.shape[-1]
    return f"{d.new()} = " + d.one(
        f"nn.layer_norm({x}, [{last}])",
        f"nn.layer_norm({x}, [{last}], weight({last}), weight({last}))",
        f"nn.layer_norm({x}, {list(t.shape[-2:])})",
        f"nn.rms_norm({x}, [{last}])",
        # Some rows are zero, as padded positions; not -0, a sign that sums of partial values do not keep.
        f"nn.rms_norm({x} * ({x}[..., :1] > 0) + 0, [{last}])",
        f"nn.rms_norm({x}, [{last}], weight({last}))",
        f"nn.batch_norm({x}, None, None, training=True)",
        f"nn.batch_norm({x}, weight({t.shape[1]}), weight({t.shape[1]}).abs() + 1)",
        f"nn.group_norm({x}, {groups})",
        f"nn.instance_norm({x})",
        f"nn.local_response_norm({x}, 2)",
    )


@kind(1.5)
def windows(d):
    x = d.real(3, 4, lambda t: t.shape[1] > 0)
    t = d.at(x)
    n, channels = t.dim() - 2, t.shape[1]
    size, out, step = d.one(1, 2, 3), d.one(1, 2, 3), d.one(1, 2)
    padding = [d.one(0, 1, 2, -1) if min(t.shape) > 2 else d.one(0, 1) for _ in range(2 * d.chance.randrange(1, n + 1))]
    kernel = ", ".join(map(str, [out, channels] + [size] * n))
    back = ", ".join(map(str, [channels, out] + [size] * n))
    return f"{d.new()} = " + d.one(
        f"nn.conv{n}d({x}, weight({kernel}), stride={step}, padding={d.one(0, 1)}, dilation={d.one(1, 1, 2)})",
        f"nn.conv_transpose{n}d({x}, weight({back}), stride={step})",
        f"nn.avg_pool{n}d({x}, {size}, stride={step})",
        f"nn.max_pool{n}d({x}, {size}, stride={step})",
        f"nn.adaptive_avg_pool{n}d({x}, {size})",
        f"nn.interpolate({x}, scale_factor=2, mode='{d.one('nearest', 'linear' if n == 1 else 'bilinear')}')",
        f"nn.pad({x}, {padding}, mode='{d.one('constant', 'constant', 'reflect', 'circular')}')",
        f"nn.unfold({x}, 2)",
    )


@kind()
def convolution(d):
    x = d.real(3, 4, lambda t: t.shape[1] > 0)
    t = d.at(x)
    y = d.real(t.dim(), t.dim(), lambda u: u.shape[1] == t.shape[1] and max(u.shape[2:]) <= 3 and min(u.shape) > 0)
    return f"{d.new()} = nn.conv{t.dim() - 2}d({x}, {y}, padding={d.one(0, 1, 2)}, stride={d.one(1, 2)})"


@kind(1.5)
def attention(d):
    """Of values as they are, or with one key and value head for all query heads."""
    x = d.real(3, 4, lambda t: t.numel() > 0)
    t = d.at(x)
    rest = f"is_causal={d.one(True, False)}"
    if t.dim() == 4 and d.often(0.6):
        heads = t.shape[1]

        def fits(u):
            alike = u.shape[0] in (1, t.shape[0]) and u.shape[1] in (1, heads) and u.shape[-1] == t.shape[-1]
            return alike and u.numel() > 0

        keys = f"{d.real(4, 4, fits)}[:, :1].expand({t.shape[0]}, {heads}, -1, -1)"
        values = d.one(keys, f"{keys}.cos()", keys)
        return f"{d.new()} = nn.scaled_dot_product_attention({x}, {keys}, {values}, {rest})"
    y = d.like(t)
    return f"{d.new()} = nn.scaled_dot_product_attention({x}, {y}, {d.one(x, y)}, {rest})"


@kind()
def embedding(d):
    x = d.real(2, 2, lambda t: t.shape[0] > 0)
    rows = d.at(x).shape[0]
    index = d.value(lambda u: u.dtype == torch.long and u.dim() <= 2)
    return f"{d.new()} = " + d.one(
        f"nn.embedding({index}.remainder({rows}), {x})",
        f"nn.embedding({index}.remainder({rows}), {x}, padding_idx=0)",
        f"nn.one_hot({index}.remainder(4), 4)",
        f"nn.embedding_bag({index}.remainder({rows}).reshape(-1, 1), {x}, mode='{d.one('sum', 'mean')}')",
    )


@kind()
def class_loss(d):
    x = d.real(2, 2)
    t = d.at(x)
    classes = d.value(lambda u: u.dtype == torch.long and u.dim() == 1 and u.shape[0] == t.shape[0])
    given = f"{x}, {classes}.remainder({t.shape[1]})"
    how = f"reduction='{d.one('mean', 'sum', 'none')}'"
    return f"{d.new()} = " + d.one(
        f"nn.cross_entropy({given}, {how})",
        f"nn.cross_entropy({given}, weight({t.shape[1]}).abs(), label_smoothing=0.1, {how})",
        f"nn.cross_entropy({given}, ignore_index=0, {how})",
        f"nn.nll_loss({given}, {how})",
        f"nn.multi_margin_loss({given}, {how})",
    )


@kind()
def pair_loss(d):
    x = d.real()
    names = "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits soft_margin_loss kl_div"
    return f"{d.new()} = nn.{d.one(*names.split())}({x}, {d.like(d.at(x))}, reduction='{d.one('mean', 'sum', 'none')}')"


