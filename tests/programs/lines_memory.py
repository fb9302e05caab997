"""Kinds of lines on memory: views, writes in place and through views, out=, casts, formats, layouts."""

import torch

from draft import Unfit, kind

# ---- views -------------------------------------------------------------------------------------


@kind(2)
def reordered(d):
    x = d.value(lambda t: t.dim() >= 2)
    t = d.at(x)
    order = d.chance.sample(range(t.dim()), t.dim())
    return f"{d.new()} = {x}" + d.one(
        f".transpose({d.dim(t)}, {d.dim(t)})", f".permute({order})", f".movedim({d.dim(t)}, {d.dim(t)})", ".mT",
        f".swapdims(0, {d.dim(t)})", ".adjoint()",
    )  # fmt: skip


def factors(d, count):
    """Sizes whose product is this."""
    sizes = []
    while count > 1 and len(sizes) < 4:
        size = d.one(*[n for n in range(1, count + 1) if count % n == 0])
        sizes.append(size)
        count //= size
    sizes.append(count)
    if d.often(0.3):
        sizes.insert(d.chance.randrange(len(sizes) + 1), 1)
    return sizes


@kind(3)
def reshaped(d):
    x = d.value(lambda t: t.dim() >= 1)
    t = d.at(x)
    if d.often(0.3):
        first = d.chance.randrange(t.dim())
        return f"{d.new()} = {x}.flatten({first}, {d.chance.randrange(first, t.dim())})"
    if t.numel() == 0:
        return f"{d.new()} = {x}.reshape({list(t.shape)[::-1]})"
    return f"{d.new()} = {x}.{d.one('reshape', 'reshape', 'view')}({factors(d, t.numel())})"


@kind()
def unflattened(d):
    x = d.value(lambda t: any(size and size % 2 == 0 for size in t.shape))
    dim = next(i for i, size in enumerate(d.at(x).shape) if size and size % 2 == 0)
    return f"{d.new()} = {x}.unflatten({dim}, {d.one((2, -1), (-1, 2))})"


@kind()
def ones_added(d):
    x = d.value(lambda t: t.dim() <= 3)
    return f"{d.new()} = {x}.unsqueeze({d.chance.randrange(d.at(x).dim() + 1)})"


@kind()
def ones_dropped(d):
    x = d.value(lambda t: 1 in t.shape)
    return f"{d.new()} = {x}.squeeze({d.one('', list(d.at(x).shape).index(1))})"


@kind(2)
def expanded(d):
    x = d.value(lambda t: t.dim() <= 3)
    sizes = [d.one(2, 3) if size == 1 and d.often(0.7) else -1 for size in d.at(x).shape]
    if not sizes or d.often(0.4):
        sizes = [d.one(2, 3)] + sizes
    return f"{d.new()} = {x}.expand({sizes})" + d.one("", "", ".clone()", ".contiguous()")


def slices(d, tensor):
    """Something to stand in brackets: slices, numbers, new dimensions."""
    parts = []
    for size in tensor.shape:
        draw = d.chance.random()
        if draw < 0.4:
            parts.append(":")
        elif draw < 0.75:
            begin = d.chance.randrange(size + 1)
            end, step = d.chance.randrange(begin, size + 1), d.one("", "", ":2", ":3")
            parts.append(f"{begin}:{end}{step}")
        elif draw < 0.85 and size:
            parts.append(str(d.chance.randrange(-size, size)))
        else:
            parts.append(d.one("::2", "None, :"))
    return ", ".join(parts)


@kind(3)
def sliced(d):
    x = d.value(lambda t: t.dim() >= 1)
    return f"{d.new()} = {x}[{slices(d, d.at(x))}]"


@kind(2)
def other_views(d):
    x = d.value(lambda t: t.dim() >= 1)
    t = d.at(x)
    dim = d.dim(t)
    size = t.shape[dim]
    begin = d.chance.randrange(size + 1)
    return f"{d.new()} = {x}." + d.one(
        f"narrow({dim}, {begin}, {d.chance.randrange(size - begin + 1)})",
        f"select({dim}, {d.chance.randrange(-size, size) if size else 0})",
        f"diagonal({d.one(-1, 0, 1)}, 0, -1)",
        # A copy: what torch writes into places that share memory is undetermined.
        f"unfold({dim}, {d.chance.randrange(1, size + 1) if size else 0}, {d.one(1, 2)}).clone()",
        f"view_as({x})",
        "t()",
        "detach()",
        "squeeze()",
        f"as_strided({[size]}, [1])" if d.often(0.02) else "ravel()",
    )


@kind(2)
def rearranged(d):
    """Not views, but elements elsewhere."""
    x = d.value(lambda t: t.dim() >= 1)
    t = d.at(x)
    dim = d.dim(t)
    size = t.shape[dim]
    return f"{d.new()} = {x}." + d.one(
        f"flip([{dim}])",
        f"roll({d.one(size, -size, 2 * size, *range(-4, 5))}, {dim})",
        f"roll({d.chance.randrange(-4, 5)})",
        f"{d.one('tril', 'triu')}({d.one(-1, 0, 1)})",
        f"repeat({[d.one(1, 1, 2) for _ in t.shape]})",
        "tile((2, 1))",
        f"repeat_interleave(2, {dim})",
        "rot90(1, [0, 1])",
    )


@kind(2)
def joined(d):
    x = d.value(lambda t: t.dim() >= 1)
    t = d.at(x)
    dim = d.chance.randrange(t.dim())

    def fits(u):
        same = u.dim() == t.dim() and u.dtype == t.dtype
        return same and all(a == b or i == dim for i, (a, b) in enumerate(zip(u.shape, t.shape)))

    others = [d.value(fits) for _ in range(d.one(1, 1, 2))]
    return f"{d.new()} = torch.cat([{', '.join(d.chance.sample([x, *others], 1 + len(others)))}], {dim})"


@kind()
def stacked(d):
    x = d.value(lambda t: t.dim() <= 3)
    t = d.at(x)
    stack = f"stack([{{}}, {{}}], {d.chance.randrange(t.dim() + 1)})"
    form = d.one(stack, "hstack([{}, {}])", "vstack([{}, {}])", "dstack([{}, {}])")
    return f"{d.new()} = torch." + form.format(x, d.like(t))


@kind(2)
def split(d):
    x = d.value(lambda t: t.dim() >= 1 and max(t.shape) >= 2)
    t = d.at(x)
    dim = d.one(*[i for i, size in enumerate(t.shape) if size >= 2])
    size = t.shape[dim]
    first = d.chance.randrange(size + 1)
    return f"{d.new()}, {d.new()} = " + d.one(
        f"{x}.split([{first}, {size - first}], {dim})",
        f"{x}.chunk(2, {dim})",
        f"{x}.tensor_split([{first}], {dim})",
        f"torch.unbind({x}, {dim})[:2]",
        f"{x}.split({-(-size // 2)}, {dim})[:2]",
    )


@kind()
def complex_values(d):
    if d.often(0.4):
        x = d.real()
        t = d.at(x)
        return f"{d.new()} = " + d.one(
            f"torch.complex({x}, {d.like(t)})",
            f"torch.fft.{d.one('fft', 'ifft', 'rfft')}({x}, dim={d.dim(t)})",
            f"torch.view_as_complex({x}.contiguous())",
            f"{x}.to(torch.complex128)",
        )
    x = d.value(lambda t: t.is_complex())
    forms = [".real", ".imag", ".conj()", ".abs()", " * 1j", ".conj() * 2", ".mH", ".sum()", ".conj().real"]
    return f"{d.new()} = " + d.one(*[x + form for form in forms], f"torch.view_as_real({x})")


# ---- copies, dtypes, formats, layouts ------------------------------------------------------------


@kind()
def copied(d):
    x = d.value()
    forms = [".clone()", ".contiguous()", ".detach()", ".detach().clone()"]
    forms += [".clone(memory_format=torch.preserve_format)"]
    if d.at(x).dim() == 4:
        forms += [".contiguous(memory_format=torch.channels_last)", ".to(memory_format=torch.channels_last)"] * 2
    return f"{d.new()} = {x}{d.one(*forms)}"


@kind()
def cast(d):
    x = d.value()
    dtypes = ["float64", "float64", "int64", "bool", "int32", "complex128"] + ["float32", "bfloat16", "float16"] * d.low
    form = d.one(".to(torch.{})", ".to(torch.{})", ".type(torch.{})", ".to(dtype=torch.{}, copy=True)")
    dtype = d.one(*dtypes)
    if dtype.startswith("int") and d.at(x).is_floating_point() and nearly_whole(d.at(x)):
        raise Unfit
    return f"{d.new()} = {x}{form.format(dtype)}"


def nearly_whole(tensor):
    """Whether rounding may put an element on either side of a whole number."""
    whole = tensor.detach().round()
    return bool(((tensor.detach() - whole).abs().lt(1e-9) & whole.ne(0)).any())


@kind(1.5)
def moved(d):
    x = d.value()
    return f"{d.new()} = move({x}, '{d.layout(d.at(x))}')"


@kind()
def made_like(d):
    x = d.value(lambda t: t.dim() >= 1)
    form = d.one(
        "torch.zeros_like({})", "torch.ones_like({}, dtype=torch.float64)", "{}.new_full((2, 3), 1.5)",
        "{}.new_zeros(3)", "torch.full_like({}, 2)", "{}.new_ones((1,))", "torch.zeros_like({}, dtype=torch.long)",
    )  # fmt: skip
    return f"{d.new()} = " + form.format(x)


# ---- writes -----------------------------------------------------------------------------------

IN_PLACE = (
    "mul_(0.5) add_(1) neg_() tanh_() zero_() fill_(0.7) fill_(-2) clamp_(-1,1) sin_() abs_() relu_() sub_(0.25) "
    "sigmoid_() div_(2) sub_(100).div_(50) mul_(-1) copysign_(-1.) floor_() cos_()"
).split()


@kind(2.5)
def written(d):
    x = d.writable()
    t = d.at(x)
    if d.often(0.5):
        return f"{x}.{d.one(*IN_PLACE)}"
    y = d.broadcast_with(t, into=True)
    if x != y and d.shares(x, y):  # see torch_differences.py
        raise Unfit
    return f"{x}." + d.one(
        f"add_({y})", f"mul_({y})", f"copy_({y})", f"sub_({y}, alpha=2)", f"copy_({y})",
        f"masked_fill_({y} > 0.2, 0.5)", f"addcmul_({y}, {y})", f"lerp_({y}, 0.3)", "cumsum_(0)", "tril_()",
        f"masked_fill_({x} > 0.2, 0.5)",
        "fill_diagonal_(2.)", f"clamp_(max={y})", "squeeze_()", "unsqueeze_(0)", "transpose_(0, -1)", "t_()",
    )  # fmt: skip


@kind(2.5)
def item_set(d):
    x = d.writable(lambda t: t.dim() >= 1)
    t = d.at(x)
    window = slices(d, t).replace("None, :", ":")
    draw = d.chance.randrange(7)
    if draw == 0:
        return f"{x}[{window}] = {d.number()}"
    if draw == 1:
        return f"{x}[{window}] {d.one('+=', '*=', '-=')} {d.number()}"
    if draw == 2:
        return f"{x}[{window}] = {x}[{window}] * 2"
    if draw == 3:
        return f"{x}[{x} > {d.one(0.4, 0.1)}] = {d.number()}"
    if draw == 4:
        y = d.broadcast_with(t[eval(f"slice_of[{window}]", {"slice_of": Brackets()})].detach(), into=True)
        if d.shares(x, y):  # see torch_differences.py
            raise Unfit
        return f"{x}[{window}] = {y}"
    if draw == 5:
        where = sorted({d.chance.randrange(t.shape[0]) for _ in range(3)}) if t.shape[0] else []
        return f"{x}[torch.tensor({where}, dtype=torch.long)] {d.one('=', '+=')} {d.number()}"
    inner = slices(d, t[eval(f"slice_of[{window}]", {"slice_of": Brackets()})]).replace("None, :", ":")
    return f"{x}[{window}][{inner or '...'}] = {d.number()}"


class Brackets:
    """Gives back what stands in brackets."""

    def __getitem__(self, item):
        return item


@kind(2)
def written_through(d):
    """A view of a value, and a write to it in the same line."""
    x = d.writable(lambda t: t.dim() >= 1)
    t = d.at(x)
    dim = d.chance.randrange(t.dim())
    size = t.shape[dim]
    if size == 0:
        raise Unfit
    at = d.chance.randrange(size)
    view = d.one(
        f"select({dim}, {at})", "transpose(0, -1)", f"narrow({dim}, {at}, 1)", "reshape(-1)", "view(-1)", "flatten()",
        "diagonal()", f"unsqueeze({dim})", f"unbind({dim})[{at}]", f"chunk(2, {dim})[-1]",
        f"split({-(-size // 2)}, {dim})[0]", "t()", "squeeze()", f"unfold({dim}, {size}, 1)", "detach()",
    )  # fmt: skip
    return f"{x}.{view}.{d.one(*IN_PLACE)}"


@kind(1.2)
def rows_written(d):
    x = d.writable(lambda t: t.dim() >= 1 and t.numel() > 0)
    t = d.at(x)
    dim = d.chance.randrange(t.dim())
    size = t.shape[dim]
    picks = [d.chance.randrange(size), d.chance.randrange(size)]
    distinct = sorted(set(picks))
    first = sorted({pick % t.shape[0] for pick in picks})
    where = f"torch.tensor({distinct})"
    source = f"{x}.detach().clone().index_select({dim}, torch.tensor({distinct[::-1]}))"
    sizes = [1] * t.dim()
    sizes[dim] = -1
    index = f"{where}.reshape({sizes}).expand_as({source})"
    return f"{x}." + d.one(
        f"index_add_({dim}, torch.tensor({picks}), {x}.detach().clone().index_select({dim}, torch.tensor({picks})))",
        f"index_copy_({dim}, {where}, {source})",
        f"index_fill_({dim}, {where}, {d.number()})",
        f"scatter_({dim}, {index}, {source})",
        f"scatter_({dim}, {index}, {d.number()})",
        f"scatter_add_({dim}, {index}, {source})",
        f"index_put_((torch.tensor({first}),), weight(1)[0], accumulate={d.one(True, False)})",
        f"masked_scatter_({x} > 0, {x}.detach().clone())",
        f"select({dim}, {picks[0]}).copy_({x}.select({dim}, {picks[1]}).clone())",
    )


@kind()
def whole_numbers_written(d):
    x = d.value(lambda t: t.dtype == torch.long and t.dim() >= 1)
    return f"{x}" + d.one("[0] = 3", ".add_(1)", ".remainder_(4)", "[..., :1] += 2", ".neg_()", ".bitwise_xor_(1)")


@kind()
def lists_written(d):
    x, y = d.writable(), d.writable()
    if x == y:
        raise Unfit
    form = d.one(
        "torch._foreach_add_([{}, {}], 1.)", "torch._foreach_mul_([{}, {}], 0.5)", "torch._foreach_neg_([{}, {}])",
        "torch._foreach_zero_([{}, {}])", "torch._foreach_clamp_max_([{}, {}], 0.5)", "torch._foreach_tanh_([{}, {}])",
    )  # fmt: skip
    return form.format(x, y)


@kind()
def lists(d):
    x, y = d.real(), d.real()
    form = d.one(
        "torch._foreach_mul([{}, {}], 2.)", "torch._foreach_norm([{}, {}])", "torch._foreach_abs([{}, {}])",
        "torch._foreach_add([{0}, {1}], [{0}, {1}])", "torch._foreach_lerp([{0}, {1}], [{0}, {1}], 0.3)",
        "torch._foreach_max([{}, {}])", "torch._foreach_addcmul([{0}, {1}], [{0}, {1}], [{0}, {1}])",
        "torch._foreach_norm([{}, {}], 1)",
    )  # fmt: skip
    return f"{d.new()}, {d.new()} = " + form.format(x, y)


@kind(1.5)
def into_out(d):
    """out= a new tensor, or a value that is there, whatever its layout."""
    x = d.real()
    t = d.at(x)
    source = f"{x}.detach()" if t.requires_grad else x
    call = d.one(
        f"torch.{d.one('add', 'mul', 'sub')}({source}, {d.one('2', source)}, out={{}})",
        f"torch.neg({source}, out={{}})", f"torch.sin({source}, out={{}})",
        f"torch.clamp({source}, -0.5, 0.5, out={{}})", f"torch.maximum({source}, -{source}, out={{}})",
    )  # fmt: skip
    if d.often(0.5):
        out = d.value(lambda u: u.dtype == t.dtype and not u.requires_grad and u.shape == t.shape)
        if x != out and d.shares(x, out):  # see torch_differences.py
            raise Unfit
        return call.format(out)
    made = d.new()
    return f"{made} = torch.{d.one('zeros', 'empty')}_like({source}); {call.format(made)}"


@kind(0.6)
def reduced_into_out(d):
    x = d.real(1)
    t = d.at(x)
    dim = d.dim(t)
    name = d.one("sum", "mean", "amax", "logsumexp", "amin")
    sizes = t.detach().sum(dim).shape

    def fits(u):  # memory apart from what is read: see torch_differences.py
        apart = u.untyped_storage().data_ptr() != t.untyped_storage().data_ptr()
        return not u.requires_grad and u.shape == sizes and apart

    kept = d.writable(fits)
    return f"with torch.no_grad(): torch.{name}({x}, {dim}, out={kept})"

