"""Models as people write them for one device, small: a ResNet, a U-Net, recurrent language models, a ViT, and a
Llama-like model with a mixture of experts. Nothing here is distributed; `zoo_training.py` lays them out."""

import torch
from torch import nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """ResNet-18 for small images: a 3x3 stem and four stages of two basic blocks."""

    def __init__(self, widths, classes):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)
        )
        stages, inputs = [], widths[0]
        for i, width in enumerate(widths):
            stages.append(nn.Sequential(BasicBlock(inputs, width, 1 if i == 0 else 2), BasicBlock(width, width, 1)))
            inputs = width
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.stages(self.stem(x))), 1))


class DoubleConv(nn.Sequential):
    def __init__(self, inputs, outputs, groups):
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.GroupNorm(groups, outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """Two levels down and up. One way up is a transposed convolution, the other an interpolation."""

    def __init__(self, width, groups, classes):
        super().__init__()
        self.down1 = DoubleConv(3, width, groups)
        self.down2 = DoubleConv(width, 2 * width, groups)
        self.middle = DoubleConv(2 * width, 4 * width, groups)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join2 = DoubleConv(4 * width, 2 * width, groups)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.join1 = DoubleConv(3 * width, width, groups)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        high = self.down1(x)
        low = self.down2(F.max_pool2d(high, 2))
        y = self.middle(F.max_pool2d(low, 2))
        y = self.join2(torch.cat([low, self.up2(y)], dim=1))
        y = self.join1(torch.cat([high, self.up1(y)], dim=1))
        return self.head(y)


class RecurrentLM(nn.Module):
    """A language model over nn.LSTM or nn.GRU. With `tied` the head is the embedding."""

    def __init__(self, kind, vocabulary, width, tied):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = kind(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        hidden, _ = self.rnn(self.embedding(tokens))
        return self.head(hidden)


class CellLM(nn.Module):
    """The same with a cell and a loop over time."""

    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.cell = nn.LSTMCell(width, width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        state, outputs = None, []
        for x in self.embedding(tokens).unbind(1):
            state = self.cell(x, state)
            outputs.append(state[0])
        return self.head(torch.stack(outputs, dim=1))


class EncoderBlock(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, image, patch, width, heads, hidden, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.randn(1, 1, width) / 8)
        self.position = nn.Parameter(torch.randn(1, 1 + (image // patch) ** 2, width) / 8)
        self.blocks = nn.Sequential(EncoderBlock(width, heads, hidden), EncoderBlock(width, heads, hidden))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


def rotate(x, cos, sin):
    """Rotary position embedding of x [batch, heads, time, features]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class GroupedAttention(nn.Module):
    """Causal attention in which several heads share one of keys and values."""

    def __init__(self, width, heads, kv_heads, head_width, length):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.wq = nn.Linear(width, heads * head_width, bias=False)
        self.wk = nn.Linear(width, kv_heads * head_width, bias=False)
        self.wv = nn.Linear(width, kv_heads * head_width, bias=False)
        self.wo = nn.Linear(heads * head_width, width, bias=False)
        rates = 10000.0 ** (-torch.arange(0, head_width, 2) / head_width)
        angles = torch.outer(torch.arange(length), rates)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x):
        batch, time, _ = x.shape
        q = self.wq(x).view(batch, time, self.heads, -1).transpose(1, 2)
        k = self.wk(x).view(batch, time, self.kv_heads, -1).transpose(1, 2)
        v = self.wv(x).view(batch, time, self.kv_heads, -1).transpose(1, 2)
        cos, sin = self.cos[:time], self.sin[:time]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(batch, time, -1))


def expert_mm(x, weights, counts):
    """Row i of x, whose rows are sorted by expert, times its expert's matrix. ATen's op knows no float64 on CPUs."""
    if x.dtype != torch.float64:
        return F.grouped_mm(x, weights, offs=counts.cumsum(0).to(torch.int32))
    return torch.cat([rows @ w for rows, w in zip(x.split(counts.tolist()), weights)])


class MixtureOfExperts(nn.Module):
    """Each token goes to its best `top` experts. Also gives the loss that asks for an even load."""

    def __init__(self, width, hidden, experts, top):
        super().__init__()
        self.experts, self.top = experts, top
        self.router = nn.Linear(width, experts, bias=False)
        self.gate = nn.Parameter(torch.randn(experts, width, hidden) / width**0.5)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        probabilities = F.softmax(self.router(tokens), dim=-1)
        weights, chosen = probabilities.topk(self.top, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.experts)
        order = chosen.flatten().argsort(stable=True)
        token = order // self.top
        rows = tokens[token]
        hidden = F.silu(expert_mm(rows, self.gate, counts)) * expert_mm(rows, self.up, counts)
        rows = expert_mm(hidden, self.down, counts) * weights.flatten()[order].unsqueeze(-1)
        out = torch.zeros_like(tokens).index_add(0, token, rows)
        share = counts / order.numel()
        return out.view_as(x), self.experts * (share * probabilities.mean(0)).sum()


class MoELlama(nn.Module):
    def __init__(self, vocabulary, width, heads, kv_heads, head_width, hidden, experts, top, layers=2, length=16):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.RMSNorm(width),
                    "attention": GroupedAttention(width, heads, kv_heads, head_width, length),
                    "norm2": nn.RMSNorm(width),
                    "moe": MixtureOfExperts(width, hidden, experts, top),
                }
            )
            for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x, balance = self.embedding(tokens), 0.0
        for layer in self.layers:
            x = x + layer["attention"](layer["norm1"](x))
            y, uneven = layer["moe"](layer["norm2"](x))
            x, balance = x + y, balance + uneven
        return self.head(self.norm(x)), balance
